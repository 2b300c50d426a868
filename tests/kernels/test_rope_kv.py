"""Against the reference: rotary angles; norms, rotation and KV write in one launch, into strided views of a poisoned arena."""

import pytest
import torch
from triton_cases import DEVICE, assert_near, norm_weight, randn

from inference_server.kernels import reference
from inference_server.kernels.gpu.rope_kv import norm_rotate_store, rotary_angles
from inference_server.kernels.ops import KVSlots

BLOCK = 4


def cache_slots(slots: torch.Tensor, kv_heads: int, head_dim: int, dtype: torch.dtype) -> KVSlots:
    """Slots in layer 1 of a group of three, as `KVTensors` cuts it out of the arena. What has not been written is NaN."""
    blocks = int(slots.max()) // BLOCK + 2
    arena = torch.full((blocks, 3, 2, BLOCK, kv_heads, head_dim), torch.nan, dtype=dtype, device=DEVICE)
    return KVSlots(arena[:, 1, 0], arena[:, 1, 1], slots)


def check(tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, norm_v: bool, values_are_keys: bool = False) -> None:
    parts = heads + kv_heads * (1 if values_are_keys else 2)
    qkv = randn(tokens, parts * head_dim + 8, dtype=dtype)[:, : parts * head_dim]  # rows with a stride that is not their length
    angle = randn(tokens, head_dim // 2)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    weight = torch.stack([norm_weight(head_dim) for _ in range(heads + kv_heads * (2 if norm_v else 1))])
    mapping = torch.randperm(3 * tokens, device=DEVICE)[:tokens] + BLOCK
    mine, expected = (cache_slots(mapping, kv_heads, head_dim, dtype) if kv_heads else None for _ in range(2))
    q = norm_rotate_store(qkv, weight, 1e-6, cos, sin, mine, values_are_keys)
    wide = (qkv.float(), weight, 1e-6, cos.float(), sin.float(), expected, values_are_keys)
    assert_near(q, reference.norm_rotate_store(*wide).to(dtype))
    if mine and expected:
        for got, wanted in ((mine.key, expected.key), (mine.value, expected.value)):
            assert got.isnan().equal(wanted.isnan())
            assert_near(got.nan_to_num(), wanted.nan_to_num())


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("heads, kv_heads, head_dim", [(2, 1, 8), (4, 2, 16), (3, 3, 4), (4, 0, 8)])
@pytest.mark.parametrize("norm_values", [False, True])
def test_heads(tokens: int, heads: int, kv_heads: int, head_dim: int, norm_values: bool) -> None:
    torch.manual_seed(0)
    check(tokens, heads, kv_heads, head_dim, torch.float32, norm_values)


def test_so_many_tokens_that_a_program_takes_several() -> None:
    torch.manual_seed(0)
    check(1100, 2, 1, 8, torch.float32, norm_v=False)


def test_the_raw_key_as_value() -> None:
    torch.manual_seed(0)
    check(5, 4, 2, 8, torch.float32, norm_v=True, values_are_keys=True)


def test_bfloat16() -> None:
    torch.manual_seed(0)
    check(3, 4, 2, 8, torch.bfloat16, norm_v=False)


def test_a_token_without_a_slot_is_not_stored() -> None:
    torch.manual_seed(0)
    slots = cache_slots(torch.tensor([5, -1, 9], device=DEVICE), 1, 8, torch.float32)
    angle = randn(3, 4)
    q = norm_rotate_store(randn(3, 3 * 8), norm_weight(8).repeat(2, 1), 1e-6, angle.cos(), angle.sin(), slots)
    written = ~slots.key.isnan().all(-1).flatten()
    assert written.nonzero().flatten().tolist() == [5, 9] and not q.isnan().any()


def test_a_head_dim_that_is_no_power_of_two_is_refused() -> None:
    with pytest.raises(ValueError, match="power of two"):
        norm_rotate_store(randn(1, 24), norm_weight(12).repeat(2, 1), 1e-6, randn(1, 6), randn(1, 6), None)


@pytest.mark.parametrize("half", [4, 12])
def test_angles(half: int) -> None:
    positions, frequencies = torch.tensor([0, 1, 77, 131071], device=DEVICE), 1e4 ** -torch.linspace(0, 1, half, device=DEVICE)
    for mine, expected in zip(
        rotary_angles(positions, frequencies, torch.float32), reference.rotary_angles(positions, frequencies, torch.float32), strict=True
    ):
        torch.testing.assert_close(mine, expected, atol=1e-6, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("heads, kv_heads, head_dim", [(8, 1, 256), (8, 1, 512), (8, 0, 512), (32, 4, 128), (16, 8, 256)])
@pytest.mark.parametrize("tokens", [1, 8, 1000])
def test_real_shapes(tokens: int, heads: int, kv_heads: int, head_dim: int) -> None:
    torch.manual_seed(0)
    check(tokens, heads, kv_heads, head_dim, torch.bfloat16, norm_v=kv_heads > 0)
