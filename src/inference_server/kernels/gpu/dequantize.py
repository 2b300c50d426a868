"""An int8 weight in the dtype of activations: the rows of a lookup, or all, for products of so many rows that the library is faster."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.gpu.launch import overlaps_launches

_BLOCK = 4096


def dequantize(weight: Tensor, scales: Tensor, dtype: torch.dtype, ids: Tensor | None = None) -> Tensor:
    """weight int8 [N, K], contiguous, times scales float32 [N], rounded once. ids: int64 [R] of the rows wanted, in their order."""
    k = weight.shape[1]
    n = len(weight if ids is None else ids)
    out = torch.empty(n, k, dtype=dtype, device=weight.device)
    overlap = overlaps_launches(weight.device)
    block = min(_BLOCK, triton.next_power_of_2(k))
    _dequantize_kernel[(n, triton.cdiv(k, block))](weight, scales, ids, out, k, block, overlap, num_warps=4, launch_pdl=overlap)
    return out


@triton.jit
def _dequantize_kernel(weight, scales, ids, out, k, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = row
    if ids is not None:
        if OVERLAP:
            tl.extra.cuda.gdc_wait()
        source = tl.load(ids + row)
    values = tl.load(weight + source * k + columns, mask=columns < k, other=0).to(tl.float32) * tl.load(scales + source)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    tl.store(out + row * k + columns, values.to(out.dtype.element_ty), mask=columns < k)
