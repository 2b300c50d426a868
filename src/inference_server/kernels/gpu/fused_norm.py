"""`reference.add_norm` in one launch: norm of a sublayer's output, residual addition, scale, norm of the next input.

Sums are in float32; what the separate operations round to the activations' dtype is rounded here too, so that the fused step gives the
same bits up to the order of a sum.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.gpu.launch import overlaps_launches
from inference_server.kernels.ops import AddNorm


def changes_stream(stream: Tensor | None, update: Tensor, norm: AddNorm) -> bool:
    """Whether the new stream differs from the update."""
    return stream is not None or norm.post is not None or norm.scale != 1.0 or update.ndim == 3


def add_norm(stream: Tensor | None, update: Tensor, norm: AddNorm, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """As the reference; everything contiguous. update may also be the partial sums of a layer, [parts, tokens, size], added in float32.

    dtype: of the results, by default that of the stream, else of the update.
    """
    tokens, size = update.shape[-2:]
    changes = changes_stream(stream, update, norm)
    dtype = dtype or (update if stream is None else stream).dtype
    total = torch.empty(tokens, size, dtype=dtype, device=update.device) if changes else update
    normed = total if norm.pre is None else torch.empty(tokens, size, dtype=dtype, device=update.device)
    parts = update.shape[0] if update.ndim == 3 else 1
    per_warp = 512 if parts < 4 else 128  # few enough numbers for those of all parts to be on their way at once
    overlap = overlaps_launches(update.device)
    _add_norm_kernel[(tokens,)](
        update,
        stream,
        norm.post,
        norm.pre,
        total,
        normed,
        norm.eps,
        norm.scale,
        tokens,
        size,
        triton.next_power_of_2(size),
        PARTS=parts,
        RESIDUAL=stream is not None,
        POST=norm.post is not None,
        PRE=norm.pre is not None,
        HIDDEN=changes,
        OVERLAP=overlap,
        num_warps=max(4, min(16, triton.next_power_of_2(size) // per_warp)),
        launch_pdl=overlap,
    )
    return total, normed


@triton.jit
def _add_norm_kernel(
    x,
    residual,
    post,
    pre,
    hidden,
    normed,
    eps,
    scale,
    tokens,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    POST: tl.constexpr,
    PRE: tl.constexpr,
    HIDDEN: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One program a token."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    columns = tl.arange(0, BLOCK)
    valid = columns < SIZE
    if POST:
        post_weight = tl.load(post + columns, mask=valid, other=0.0)
    if PRE:
        pre_weight = tl.load(pre + columns, mask=valid, other=0.0)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    dtype = normed.dtype.element_ty
    token = tl.program_id(0).to(tl.int64)
    row = token * SIZE
    value = tl.load(x + row + columns, mask=valid, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        value += tl.load(x + (part * tokens + token) * SIZE + columns, mask=valid, other=0.0).to(tl.float32)
    if PARTS > 1:
        value = value.to(dtype).to(tl.float32)
    if RESIDUAL:
        before = tl.load(residual + row + columns, mask=valid, other=0.0).to(tl.float32)
    if POST:
        value = (value * tl.rsqrt(tl.sum(value * value) / SIZE + eps) * post_weight).to(dtype).to(tl.float32)
    if RESIDUAL:
        value = (before + value).to(dtype).to(tl.float32)
    if HIDDEN:
        value = (value * scale).to(dtype).to(tl.float32)
        tl.store(hidden + row + columns, value.to(dtype), mask=valid)
    if PRE:
        value = value * tl.rsqrt(tl.sum(value * value) / SIZE + eps) * pre_weight
        tl.store(normed + row + columns, value.to(dtype), mask=valid)
