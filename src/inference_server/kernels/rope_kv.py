"""From the qkv projection to attention in one launch: per-head norms, rotation, and the write of K and V into the paged cache.

One program a token and head. Computed in float32; q, k and v are rounded once, on their way out.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.launch import overlaps_launches
from inference_server.kernels.reference import rms_norm, rope, write_kv


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """The norms of one attention layer. q, k: float32 [head_dim], or None for no norm. v: norm without a weight (Gemma 4) or none."""

    q: Tensor | None
    k: Tensor | None
    v: bool
    eps: float


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Where a layer's K and V go. key, value: [num_blocks, block_size, num_kv_heads, head_dim], the last two dense.

    slot_mapping: int64 [tokens], block * block_size + offset; negative for a token that is not written.
    """

    key: Tensor
    value: Tensor
    slot_mapping: Tensor


def rope_kv(
    qkv: Tensor, cos: Tensor, sin: Tensor, num_heads: int, norms: HeadNorms, cache: LayerCache | None, *, value_is_key: bool = False
) -> Tensor:
    """Returns q [tokens, num_heads, head_dim], normed and rotated; writes normed, rotated k and normed v through the slot mapping.

    qkv: [tokens, (num_heads + 2 num_kv_heads) * head_dim], rows at any stride: q heads, k heads, v heads. cos, sin: [tokens, head_dim / 2].
    cache: None in layers that own no KV, whose qkv is q alone. value_is_key: qkv has no v heads, v is the raw k.
    ValueError for a head_dim that is no power of two.
    """
    tokens, half = cos.shape
    if half & (half - 1):
        raise ValueError(f"head_dim {2 * half} is not a power of two")
    num_kv_heads = cache.key.shape[2] if cache else 0
    q = torch.empty(tokens, num_heads, 2 * half, dtype=qkv.dtype, device=qkv.device)
    overlap = overlaps_launches(qkv.device)
    _rope_kv_kernel[(tokens, num_heads + 2 * num_kv_heads)](
        qkv,
        cos,
        sin,
        norms.q,
        norms.k,
        q,
        cache.key if cache else None,
        cache.value if cache else None,
        cache.slot_mapping if cache else None,
        qkv.stride(0),
        cache.key.stride(0) if cache else 0,
        cache.key.stride(1) if cache else 0,
        norms.eps,
        HEADS=num_heads,
        KV_HEADS=num_kv_heads,
        HALF=half,
        BLOCK_SIZE=cache.key.shape[1] if cache else 1,
        Q_NORM=norms.q is not None,
        K_NORM=norms.k is not None,
        V_NORM=norms.v,
        VALUE_IS_KEY=value_is_key,
        OVERLAP=overlap,
        num_warps=1 if half <= 128 else 2,
        launch_pdl=overlap,
    )
    return q


def reference_rope_kv(
    qkv: Tensor, cos: Tensor, sin: Tensor, num_heads: int, norms: HeadNorms, cache: LayerCache | None, *, value_is_key: bool = False
) -> Tensor:
    heads = qkv.float().unflatten(1, (-1, 2 * cos.shape[1]))
    cos, sin = cos.float(), sin.float()
    q = heads[:, :num_heads]
    if norms.q is not None:
        q = rms_norm(q, norms.q, norms.eps)
    if cache:
        k, v = heads[:, num_heads:].split(cache.key.shape[2], dim=1) if not value_is_key else (heads[:, num_heads:],) * 2
        if norms.v:
            v = rms_norm(v, torch.ones_like(v[0]), norms.eps)
        if norms.k is not None:
            k = rms_norm(k, norms.k, norms.eps)
        written = cache.slot_mapping >= 0
        write_kv(cache.key, cache.value, rope(k, cos, sin)[written], v[written], cache.slot_mapping[written])
    return rope(q, cos, sin).to(qkv.dtype)


@triton.jit
def _rope_kv_kernel(
    qkv,
    cos,
    sin,
    q_norm,
    k_norm,
    q,
    key,
    value,
    slot_mapping,
    qkv_stride,
    block_stride,
    slot_stride,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr,
    V_NORM: tl.constexpr,
    VALUE_IS_KEY: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Heads of the grid: q heads, then k heads, then v heads."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    pair = tl.arange(0, HALF)
    is_v = head >= HEADS + KV_HEADS
    source = head - KV_HEADS if VALUE_IS_KEY and is_v else head
    at = qkv + token * qkv_stride + source * (2 * HALF) + pair
    first, second = tl.load(at).to(tl.float32), tl.load(at + HALF).to(tl.float32)
    inverse_rms = tl.rsqrt(tl.sum(first * first + second * second) / (2 * HALF) + eps)
    if is_v:
        if V_NORM:
            first, second = first * inverse_rms, second * inverse_rms
    else:
        if head < HEADS:
            if Q_NORM:
                first *= inverse_rms * tl.load(q_norm + pair)
                second *= inverse_rms * tl.load(q_norm + HALF + pair)
        else:
            if K_NORM:
                first *= inverse_rms * tl.load(k_norm + pair)
                second *= inverse_rms * tl.load(k_norm + HALF + pair)
        c, s = tl.load(cos + token * HALF + pair).to(tl.float32), tl.load(sin + token * HALF + pair).to(tl.float32)
        first, second = first * c - second * s, second * c + first * s
    if head < HEADS:
        out = q + (token * HEADS + head) * (2 * HALF) + pair
        tl.store(out, first.to(q.dtype.element_ty))
        tl.store(out + HALF, second.to(q.dtype.element_ty))
    elif KV_HEADS > 0:
        slot = tl.load(slot_mapping + token)
        if slot >= 0:
            where = (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * slot_stride + pair
            if is_v:
                out = value + where + (head - HEADS - KV_HEADS) * (2 * HALF)
                tl.store(out, first.to(value.dtype.element_ty))
                tl.store(out + HALF, second.to(value.dtype.element_ty))
            else:
                out = key + where + (head - HEADS) * (2 * HALF)
                tl.store(out, first.to(key.dtype.element_ty))
                tl.store(out + HALF, second.to(key.dtype.element_ty))
