"""The fused residual and norm chain against the separate operations."""

import pytest
import torch
from triton_cases import assert_near, norm_weight, randn

from inference_server.kernels import reference
from inference_server.kernels.gpu.fused_norm import add_norm
from inference_server.kernels.ops import AddNorm


@pytest.mark.parametrize("size", [16, 33, 96])
@pytest.mark.parametrize("residual, post, pre", [(r, a, b) for r in (False, True) for a in (False, True) for b in (False, True)])
@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_every_part_may_be_left_out(size: int, residual: bool, post: bool, pre: bool, scale: float) -> None:
    torch.manual_seed(size)
    x = randn(3, size)
    before = randn(3, size) if residual else None
    norm = AddNorm(norm_weight(size) if post else None, norm_weight(size) if pre else None, 1e-5, scale)
    for mine, expected in zip(add_norm(before, x, norm), reference.add_norm(before, x, norm), strict=True):
        assert_near(mine, expected)


def test_bfloat16_and_partial_sums() -> None:
    torch.manual_seed(0)
    parts, residual = randn(3, 2, 64), randn(2, 64, dtype=torch.bfloat16)
    norm = AddNorm(norm_weight(64), norm_weight(64), 1e-6)
    whole = parts.sum(0).bfloat16()
    for mine, expected in zip(add_norm(residual, parts, norm), reference.add_norm(residual, whole, norm), strict=True):
        assert_near(mine, expected)
    for mine, expected in zip(add_norm(None, parts, norm, torch.bfloat16), reference.add_norm(None, whole, norm), strict=True):
        assert_near(mine, expected)


def test_inputs_are_left_alone() -> None:
    x, residual = randn(2, 32), randn(2, 32)
    kept = x.clone(), residual.clone()
    add_norm(residual, x, AddNorm(norm_weight(32), norm_weight(32), 1e-6, 0.5))
    assert x.equal(kept[0]) and residual.equal(kept[1])


@pytest.mark.gpu
@pytest.mark.parametrize("tokens, size", [(1, 1536), (7, 2560), (256, 5376), (35 * 256, 256)])
def test_real_shapes_give_the_bits_of_the_separate_operations(tokens: int, size: int) -> None:
    torch.manual_seed(0)
    x, residual = randn(tokens, size, dtype=torch.bfloat16), randn(tokens, size, dtype=torch.bfloat16)
    norm = AddNorm(norm_weight(size), norm_weight(size), 1e-6, 0.75)
    for mine, expected in zip(add_norm(residual, x, norm), reference.add_norm(residual, x, norm), strict=True):
        assert_near(mine, expected)
        assert (mine != expected).float().mean() < 0.01
