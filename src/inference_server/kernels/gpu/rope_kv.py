"""Rotary positions on CUDA: their angles, and all that lies between the qkv projection and attention in one launch.

`norm_rotate_store` runs one program a head and token, or a few tokens where there are many. Both compute in float32 and round once, on
the way out.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.gpu.launch import overlaps_launches
from inference_server.kernels.ops import KVSlots

MANY_PROGRAMS = 1024  # of one warp each: with more it is starting them that takes the time


def rotary_angles(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """As `reference.rotary_angles`."""
    tokens, half = len(positions), len(frequencies)
    cos, sin = torch.empty(2, tokens, half, dtype=dtype, device=positions.device)
    overlap = overlaps_launches(positions.device)
    _rotary_angles_kernel[(tokens,)](
        positions, frequencies, cos, sin, half, triton.next_power_of_2(half), overlap, num_warps=1, launch_pdl=overlap
    )
    return cos, sin


def norm_rotate_store(
    qkv: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor, slots: KVSlots | None, values_are_keys: bool = False
) -> Tensor:
    """As `reference.norm_rotate_store`; rows of qkv at any stride. A token with a negative slot is padding and is not stored.

    Raises ValueError for a head_dim that is no power of two.
    """
    tokens, (num_normed, head_dim) = len(qkv), weight.shape
    if head_dim & (head_dim - 1):
        raise ValueError(f"head_dim {head_dim} is not a power of two")
    num_kv_heads = slots.key.shape[2] if slots else 0
    num_heads = qkv.shape[1] // head_dim - num_kv_heads * (1 if values_are_keys else 2)
    q = torch.empty(tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    overlap = overlaps_launches(qkv.device)
    every_head = num_heads + 2 * num_kv_heads
    together = max(1, 2048 // head_dim) if tokens * every_head > MANY_PROGRAMS else 1
    _norm_rotate_store_kernel[(triton.cdiv(tokens, together), every_head)](
        qkv,
        weight,
        cos,
        sin,
        q,
        slots.key if slots else None,
        slots.value if slots else None,
        slots.slot_mapping if slots else None,
        tokens,
        qkv.stride(0),
        slots.key.stride(0) if slots else 0,
        slots.key.stride(1) if slots else 0,
        eps,
        HEADS=num_heads,
        KV_HEADS=num_kv_heads,
        NORMED=num_normed,
        HALF=head_dim // 2,
        BLOCK_SIZE=slots.key.shape[1] if slots else 1,
        VALUES_ARE_KEYS=values_are_keys,
        TOKENS=together,
        OVERLAP=overlap,
        num_warps=4 if together > 1 else 1 if head_dim <= 256 else 2,
        launch_pdl=overlap,
    )
    return q


@triton.jit
def _rotary_angles_kernel(positions, frequencies, cos, sin, half, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    valid = columns < half
    angle = tl.load(positions + token).to(tl.float32) * tl.load(frequencies + columns, mask=valid, other=0.0)
    at = token * half + columns
    tl.store(cos + at, tl.cos(angle).to(cos.dtype.element_ty), mask=valid)
    tl.store(sin + at, tl.sin(angle).to(sin.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=["tokens"])
def _norm_rotate_store_kernel(
    qkv,
    weight,
    cos,
    sin,
    q,
    key,
    value,
    slot_mapping,
    tokens,
    qkv_stride,
    block_stride,
    slot_stride,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    NORMED: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    VALUES_ARE_KEYS: tl.constexpr,
    TOKENS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid: tokens, TOKENS a program; heads: q heads, then k heads, then v heads."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()  # attention would else wait on the card while the projection before still reads weights
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None]
    there = token < tokens
    head = tl.program_id(1)
    pair = tl.arange(0, HALF)[None, :]
    is_v = head >= HEADS + KV_HEADS
    source = head - KV_HEADS if VALUES_ARE_KEYS and is_v else head
    at = qkv + token * qkv_stride + source * (2 * HALF) + pair
    first, second = tl.load(at, mask=there).to(tl.float32), tl.load(at + HALF, mask=there).to(tl.float32)
    if head < NORMED:
        inverse_rms = tl.rsqrt(tl.sum(first * first + second * second, 1, keep_dims=True) / (2 * HALF) + eps)
        factor = weight + head * (2 * HALF) + pair
        first *= inverse_rms * tl.load(factor)
        second *= inverse_rms * tl.load(factor + HALF)
    if not is_v:
        angle = token * HALF + pair
        c, s = tl.load(cos + angle, mask=there).to(tl.float32), tl.load(sin + angle, mask=there).to(tl.float32)
        first, second = first * c - second * s, second * c + first * s
    if head < HEADS:
        out = q + (token * HEADS + head) * (2 * HALF) + pair
        _store_halves(out, first, second, there, HALF)
    elif KV_HEADS > 0:
        slot = tl.load(slot_mapping + token, mask=there, other=-1)
        where = (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * slot_stride + pair
        if is_v:
            _store_halves(value + where + (head - HEADS - KV_HEADS) * (2 * HALF), first, second, slot >= 0, HALF)
        else:
            _store_halves(key + where + (head - HEADS) * (2 * HALF), first, second, slot >= 0, HALF)


@triton.jit
def _store_halves(out, first, second, mask, HALF: tl.constexpr):
    tl.store(out, first.to(out.dtype.element_ty), mask=mask)
    tl.store(out + HALF, second.to(out.dtype.element_ty), mask=mask)
