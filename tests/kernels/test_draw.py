"""The fused draw against the sampler's own steps: the same uniform bits, the same tokens."""

import pytest
import torch
from torch import Tensor
from triton_cases import DEVICE, randn, tl, triton

from inference_server.kernels.gpu import draw as draw_module
from inference_server.kernels.gpu.draw import draw, greedy
from inference_server.sampling.noise import gumbel, hash_tokens, row_keys, uniform

POSITIONS = [3, 0, 77, 2**20]
SEEDS = [0, 1, 2**63, 12345]


@triton.jit
def _uniform_kernel(keys, out, BLOCK: tl.constexpr, BELOW_ONE: tl.constexpr):
    ids = tl.arange(0, BLOCK)
    offset = tl.load(keys).to(tl.uint32, bitcast=True)
    multiplier = tl.load(keys + 1).to(tl.uint32, bitcast=True)
    tl.store(out + ids, draw_module.uniform(ids.to(tl.uint32), offset, multiplier, BELOW_ONE))


def expected(logits: Tensor, temperatures: Tensor, keys: Tensor) -> Tensor:
    values = (logits - logits.amax(-1, keepdim=True)) / temperatures.unsqueeze(1)
    noisy = values + gumbel(keys, hash_tokens(torch.arange(logits.shape[1], device=DEVICE)))
    return torch.where(temperatures == 0, logits.argmax(-1), noisy.argmax(-1))


def test_uniform_numbers_are_the_samplers_bit_for_bit() -> None:
    for seed, position in zip(SEEDS, POSITIONS, strict=True):
        keys, out = row_keys([seed], [position], DEVICE), torch.empty(4096, device=DEVICE)
        _uniform_kernel[(1,)](keys, out, 4096, draw_module.BELOW_ONE)
        assert out.equal(uniform(keys, hash_tokens(torch.arange(4096, device=DEVICE)))[0])


@pytest.mark.parametrize("vocab", [5, 4096, 9000])
def test_draws_are_the_samplers(vocab: int) -> None:
    torch.manual_seed(vocab)
    logits = 3 * randn(4, vocab)
    logits[:, 1] = -torch.inf
    temperatures = torch.tensor([1.0, 0.0, 0.3, 5.0], device=DEVICE)
    for step in range(3):
        keys = row_keys(SEEDS, [position + step for position in POSITIONS], DEVICE)
        assert draw(logits, temperatures, keys).equal(expected(logits, temperatures, keys))


def test_equal_logits_go_to_the_lower_id() -> None:
    logits = torch.zeros(2, 9000, device=DEVICE)
    logits[0, [4200, 8999]] = 1.0
    assert draw(logits, torch.zeros(2, device=DEVICE), row_keys([0, 0], [0, 0], DEVICE)).tolist() == [4200, 0]


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # numpy, in the interpreter
def test_a_soft_cap_may_make_logits_equal() -> None:
    logits = torch.zeros(2, 9000, device=DEVICE, dtype=torch.float16)
    logits[0, [4200, 8999]] = torch.tensor([900.0, 901.0], device=DEVICE, dtype=torch.float16)
    logits[1, [4200, 8999]] = torch.tensor([50.0, 50.5], device=DEVICE, dtype=torch.float16)
    assert greedy(logits, 30.0).tolist() == [4200, 8999]
    assert greedy(logits).tolist() == [8999, 8999]


@pytest.mark.gpu
def test_a_real_vocabulary() -> None:
    torch.manual_seed(0)
    logits, temperatures = 3 * randn(256, 262144), torch.rand(256, device=DEVICE) + 0.5
    temperatures[::5] = 0.0
    keys = row_keys(list(range(256)), list(range(256)), DEVICE)
    # The last bit of a logarithm may decide a near tie.
    assert (draw(logits, temperatures, keys) != expected(logits, temperatures, keys)).sum() <= 1
