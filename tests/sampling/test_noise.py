"""The counter-based noise: pinned bits, uniformity, and no relation between neighbouring keys."""

import pytest
import torch

from inference_server.sampling.noise import gumbel, hash_tokens, row_keys, uniform

CPU = torch.device("cpu")


def draw(seed: int, position: int, size: int = 65536) -> torch.Tensor:
    return uniform(row_keys([seed], [position], CPU), hash_tokens(torch.arange(size)))[0]


def reference_bits(seed: int, position: int, token: int) -> int:
    """The same hash in Python integers."""

    def mix_64(value: int) -> int:
        value = (value + 0x9E3779B97F4A7C15) % 2**64
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
        return value ^ value >> 31

    def mix_32(value: int) -> int:
        value = (value ^ value >> 16) * 0x85EBCA6B % 2**32
        value = (value ^ value >> 13) * 0xC2B2AE35 % 2**32
        return value ^ value >> 16

    key = mix_64((mix_64(seed % 2**64) + position) % 2**64)
    return mix_32((mix_32((token + 0x3C6EF372) % 2**32) ^ key % 2**32) * (key >> 32 | 1) % 2**32) % 2**31


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 0), (2**64 - 1, 7), (2**63 + 12345, 131071), (-3, 5)])
def test_bits_equal_integer_arithmetic(seed: int, position: int) -> None:
    tokens = [0, 1, 2, 1000, 262143]
    values = uniform(row_keys([seed], [position], CPU), hash_tokens(torch.tensor(tokens)))[0]
    expected = torch.tensor([reference_bits(seed, position, token) for token in tokens], dtype=torch.float32)
    assert torch.equal(values, ((expected + 0.5) * 2.0**-31).clamp(max=1 - 2**-24))


def test_uniform_is_uniform_and_open() -> None:
    values = torch.cat([draw(seed, 3) for seed in range(16)])
    assert values.min() > 0.0 and values.max() < 1.0
    counts = torch.histc(values, bins=256, min=0, max=1)
    expected = values.numel() / 256
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_square < 255 + 5 * (2 * 255) ** 0.5


@pytest.mark.parametrize("other", [(8, 100), (7, 101), (7 + 2**32, 100), (107, 0)])
def test_neighbouring_keys_are_unrelated(other: tuple[int, int]) -> None:
    first, second = draw(7, 100), draw(*other)
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 5 / first.numel() ** 0.5
    assert (first == second).sum() <= 3


def test_gumbel_moments_and_extremes() -> None:
    noise = torch.cat([gumbel(row_keys([seed], [0], CPU), hash_tokens(torch.arange(65536)))[0] for seed in range(16)])
    assert noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(1.6449, abs=0.02)


@pytest.mark.gpu
def test_same_bits_on_the_device() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    device = torch.device("cuda")
    values = uniform(row_keys([7], [9], device), hash_tokens(torch.arange(262144, device=device)))[0]
    assert torch.equal(values.cpu(), draw(7, 9, 262144))
