"""The elementwise end of a linear layer, act(gate) * up or the soft cap of logits, after a library's product: our own products fuse it.

Computed in float32 and rounded once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.gpu.activations import activate, softcap
from inference_server.kernels.gpu.launch import overlaps_launches
from inference_server.kernels.ops import Activation

_BLOCK = 1024
_CAP_BLOCK = 4096


def gated(gate_up: Tensor, activation: Activation | None) -> Tensor:
    """gate_up [tokens, 2 N], gates first, to [tokens, N]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gated_by(gate, up, activation)


def gated_by(gate: Tensor, factor: Tensor, activation: Activation | None) -> Tensor:
    """gate, factor [tokens, N], rows at any stride, to [tokens, N]."""
    tokens, n = gate.shape
    out = torch.empty(tokens, n, dtype=gate.dtype, device=gate.device)
    overlap = overlaps_launches(gate.device)
    grid = (tokens, triton.cdiv(n, _BLOCK))
    _gated_kernel[grid](
        gate, factor, out, gate.stride(0), factor.stride(0), n, activation, _BLOCK, overlap, num_warps=4, launch_pdl=overlap
    )
    return out


def softcapped(y: Tensor, cap: float, dtype: torch.dtype) -> Tensor:
    """cap * tanh(y / cap) of y [tokens, N], contiguous, in `dtype`."""
    out = torch.empty(y.shape, dtype=dtype, device=y.device)
    overlap = overlaps_launches(y.device)
    grid = (triton.cdiv(y.numel(), _CAP_BLOCK),)
    _softcap_kernel[grid](y, out, y.numel(), cap, _CAP_BLOCK, overlap, num_warps=8, launch_pdl=overlap)
    return out


@triton.jit
def _gated_kernel(gate, factor, out, gate_stride, factor_stride, n, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = columns < n
    gates = tl.load(gate + row * gate_stride + columns, mask=valid, other=0.0).to(tl.float32)
    factors = tl.load(factor + row * factor_stride + columns, mask=valid, other=0.0).to(tl.float32)
    tl.store(out + row * n + columns, (activate(gates, ACTIVATION) * factors).to(out.dtype.element_ty), mask=valid)


@triton.jit
def _softcap_kernel(y, out, size, cap, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(y + at, mask=at < size, other=0.0).to(tl.float32)
    tl.store(out + at, softcap(value, cap).to(out.dtype.element_ty), mask=at < size)
