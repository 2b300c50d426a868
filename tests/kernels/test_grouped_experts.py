"""The grouped experts in Triton against the reference: experts that nobody chose, and one that everybody did."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: its kernels exist on Linux only")

from inference_server.kernels import reference
from inference_server.kernels.grouped_experts import moe_experts
from inference_server.kernels.ops import Activation

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def check(tokens: int, experts: int, top_k: int, hidden: int, size: int, dtype: torch.dtype, ids: torch.Tensor, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(tokens)
    x, gate_up, down = (
        torch.randn(shape, generator=generator).to(DEVICE, dtype) * hidden**-0.5
        for shape in ((tokens, hidden), (experts, 2 * size, hidden), (experts, hidden, size))
    )
    weights = torch.rand(tokens, top_k, generator=generator).to(DEVICE)
    arguments = x, gate_up, down, ids.to(DEVICE), weights, Activation.SILU
    expected, ours = reference.moe_experts(*arguments).float(), moe_experts(*arguments).float()
    assert (ours - expected).norm() < tolerance * expected.norm()


def chosen(tokens: int, experts: int, top_k: int) -> torch.Tensor:
    return torch.rand(tokens, experts, generator=torch.Generator().manual_seed(tokens)).topk(top_k, dim=-1).indices


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_small_experts(tokens: int) -> None:
    check(tokens, 5, 2, 24, 20, torch.float32, chosen(tokens, 5, 2), 1e-5)


def test_one_expert_has_all_tokens_and_the_last_one_none() -> None:
    check(50, 4, 1, 16, 8, torch.float32, torch.ones(50, 1, dtype=torch.int64), 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 8, 33, 256, 1000, 5000])
@pytest.mark.parametrize("experts, hidden, size", [(128, 2048, 768), (128, 2816, 704)])
def test_released_shapes(tokens: int, experts: int, hidden: int, size: int) -> None:
    check(tokens, experts, 8, hidden, size, torch.bfloat16, chosen(tokens, experts, 8), 1e-2)
