"""The way from one sublayer to the next in one launch: norm of the output, residual addition, scale, norm of the next input.

Gemma norms both sides of a sublayer; other families leave a half out. Sums are in float32; what the separate operations round to the
activations' dtype is rounded here too, so that the fused step gives the same bits up to the order of a sum.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.launch import overlaps_launches
from inference_server.kernels.reference import rms_norm


@dataclass(frozen=True, slots=True)
class AddNorm:
    """What lies between two sublayers: hidden = (residual + rms_norm(x, post)) * scale, normed = rms_norm(hidden, pre).

    post, pre: float32 [size], or None for no norm there. scale: Gemma 4's layer scalar, 1 elsewhere.
    """

    post: Tensor | None
    pre: Tensor | None
    eps: float
    scale: float = 1.0

    def changes_hidden(self, residual: Tensor | None) -> bool:
        return residual is not None or self.post is not None or self.scale != 1.0


def add_norm(x: Tensor, residual: Tensor | None, norm: AddNorm) -> tuple[Tensor, Tensor]:
    """x, residual [tokens, size], contiguous, to (hidden, normed), each [tokens, size]. Without a residual, hidden is rms_norm(x, post).

    With a residual x may also be the partial sums of a linear layer, float32 [splits, tokens, size]; results have the residual's dtype.
    """
    tokens, size = x.shape[-2:]
    changes_hidden = norm.changes_hidden(residual)
    like = x if residual is None else residual
    hidden = torch.empty_like(like) if changes_hidden else x
    normed = hidden if norm.pre is None else torch.empty_like(like)
    overlap = overlaps_launches(x.device)
    _add_norm_kernel[(tokens,)](
        x,
        residual,
        norm.post,
        norm.pre,
        hidden,
        normed,
        norm.eps,
        norm.scale,
        tokens,
        size,
        triton.next_power_of_2(size),
        SPLITS=x.shape[0] if x.ndim == 3 else 1,
        RESIDUAL=residual is not None,
        POST=norm.post is not None,
        PRE=norm.pre is not None,
        HIDDEN=changes_hidden,
        OVERLAP=overlap,
        num_warps=4 if size <= 2048 else 8,
        launch_pdl=overlap,
    )
    return hidden, normed


def reference_add_norm(x: Tensor, residual: Tensor | None, norm: AddNorm) -> tuple[Tensor, Tensor]:
    if residual is not None and x.ndim == 3:
        x = x.sum(0).to(residual.dtype)
    hidden = x if norm.post is None else rms_norm(x, norm.post, norm.eps)
    if residual is not None:
        hidden = residual + hidden
    hidden = hidden * norm.scale
    return hidden, hidden if norm.pre is None else rms_norm(hidden, norm.pre, norm.eps)


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
    SPLITS: tl.constexpr,
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
    row = tl.program_id(0).to(tl.int64) * SIZE
    value = tl.load(x + row + columns, mask=valid, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        value += tl.load(x + split * tokens * SIZE + row + columns, mask=valid, other=0.0)
    if SPLITS > 1:
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
