"""Norms, rotation and KV write in one launch, into strided views of a poisoned arena, against the separate operations."""

import pytest
import torch
from triton_cases import DEVICE, assert_near, norm_weight, randn

from inference_server.kernels.rope_kv import HeadNorms, LayerCache, reference_rope_kv, rope_kv

BLOCK = 4


def angles(tokens: int, head_dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    angle = randn(tokens, head_dim // 2)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def layer_cache(slots: torch.Tensor, kv_heads: int, head_dim: int, dtype: torch.dtype) -> LayerCache:
    """Layer 1 of a group of three, as `KVTensors` cuts it out of the arena; what nobody wrote is NaN."""
    blocks = int(slots.max()) // BLOCK + 2
    arena = torch.full((blocks, 3, 2, BLOCK, kv_heads, head_dim), torch.nan, dtype=dtype, device=DEVICE)
    return LayerCache(arena[:, 1, 0], arena[:, 1, 1], slots)


def check(tokens: int, heads: int, kv_heads: int, head_dim: int, norms: HeadNorms, dtype: torch.dtype, value_is_key: bool = False) -> None:
    parts = heads + kv_heads * (1 if value_is_key else 2)
    qkv = randn(tokens, parts * head_dim + 8, dtype=dtype)[:, : parts * head_dim]  # rows at a stride of their own
    cos, sin = angles(tokens, head_dim, dtype)
    slots = torch.randperm(3 * tokens, device=DEVICE)[:tokens] + BLOCK
    if tokens > 2:
        slots[1] = -1
    mine, expected = (layer_cache(slots, kv_heads, head_dim, dtype) if kv_heads else None for _ in range(2))
    q = rope_kv(qkv, cos, sin, heads, norms, mine, value_is_key=value_is_key)
    assert_near(q, reference_rope_kv(qkv, cos, sin, heads, norms, expected, value_is_key=value_is_key))
    if mine and expected:
        for got, reference in ((mine.key, expected.key), (mine.value, expected.value)):
            assert got.isnan().equal(reference.isnan())
            assert_near(got.nan_to_num(), reference.nan_to_num())


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("heads, kv_heads, head_dim", [(2, 1, 8), (4, 2, 16), (3, 3, 4), (4, 0, 8)])
def test_gemma4(tokens: int, heads: int, kv_heads: int, head_dim: int) -> None:
    torch.manual_seed(0)
    norms = HeadNorms(norm_weight(head_dim), norm_weight(head_dim) if kv_heads else None, kv_heads > 0, 1e-6)
    check(tokens, heads, kv_heads, head_dim, norms, torch.float32)


def test_the_raw_key_as_value() -> None:
    torch.manual_seed(0)
    check(5, 4, 2, 8, HeadNorms(norm_weight(8), norm_weight(8), True, 1e-6), torch.float32, value_is_key=True)


@pytest.mark.parametrize("normed", [False, True])
def test_families_without_a_norm_of_v_or_of_anything(normed: bool) -> None:
    torch.manual_seed(0)
    norms = HeadNorms(norm_weight(8), norm_weight(8), False, 1e-6) if normed else HeadNorms(None, None, False, 1e-6)
    check(3, 4, 2, 8, norms, torch.bfloat16)


def test_a_head_dim_that_is_no_power_of_two_is_refused() -> None:
    with pytest.raises(ValueError, match="power of two"):
        rope_kv(randn(1, 24), *angles(1, 12, torch.float32), 2, HeadNorms(None, None, False, 1e-6), None)


@pytest.mark.gpu
@pytest.mark.parametrize("heads, kv_heads, head_dim", [(8, 1, 256), (8, 1, 512), (8, 0, 512), (32, 4, 128), (16, 8, 256)])
@pytest.mark.parametrize("tokens", [1, 8, 1000])
def test_real_shapes(tokens: int, heads: int, kv_heads: int, head_dim: int) -> None:
    torch.manual_seed(0)
    norms = HeadNorms(norm_weight(head_dim), norm_weight(head_dim) if kv_heads else None, kv_heads > 0, 1e-6)
    check(tokens, heads, kv_heads, head_dim, norms, torch.bfloat16)
