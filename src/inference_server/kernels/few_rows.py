"""A linear layer of 2 to 64 rows, where the time is still that of reading the weight once: y = epilogue(x @ W.T), in one launch.

It goes through the matrix units, with x as the narrow operand. Sums are in float32 and rounded once. A weight may be int8 with a float32
scale for each output feature: it is widened in registers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.activations import activate, softcap
from inference_server.kernels.launch import LaunchConfig, overlaps_launches
from inference_server.kernels.ops import Epilogue

PREFETCH_LINES = 32  # of a weight row, of 128 bytes, asked for while the kernel before still runs


def padded_rows(rows: int) -> int:
    """The width that a kernel is compiled for: a power of two that the matrix units take."""
    return max(16, triton.next_power_of_2(rows))


def few_rows(
    x: Tensor, weight: Tensor, epilogue: Epilogue, factor: Tensor | None, config: LaunchConfig, scales: Tensor | None = None
) -> Tensor:
    """`FusedLinear` for x [M, K], M <= 64; x and weight contiguous.

    With `config.splits` > 1, which takes an epilogue that is nothing but partial: the sums [splits, M, N] in float32.
    """
    m, k = x.shape
    n = weight.shape[0] // (2 if epilogue.gated else 1)
    if config.splits == 1:
        y = torch.empty(m, n, dtype=epilogue.out_dtype or x.dtype, device=x.device)
    elif epilogue == Epilogue(partial=True):
        y = torch.empty(config.splits, m, n, dtype=torch.float32, device=x.device)
    else:
        raise ValueError(f"{epilogue} cannot be left in partial sums")
    split_k = triton.cdiv(triton.cdiv(k, config.splits), config.block_k) * config.block_k
    overlap = overlaps_launches(x.device)
    _few_rows_kernel[(triton.cdiv(n, config.rows), config.splits)](
        x,
        weight,
        scales,
        factor,
        y,
        m,
        n,
        factor.stride(0) if factor is not None else 0,
        K=k,
        SPLIT_K=split_k,
        EVEN_K=split_k * config.splits == k,
        ROWS=config.rows,
        BLOCK_M=padded_rows(m),
        BLOCK_K=config.block_k,
        LINE=128 // weight.element_size(),
        PREFETCH=1 << (max(1, min(PREFETCH_LINES, min(k, split_k) * weight.element_size() // 128)).bit_length() - 1),
        GATED=epilogue.gated,
        ACTIVATION=epilogue.activation,
        FACTOR=factor is not None,
        SOFTCAP=epilogue.softcap,
        OVERLAP=overlap,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        launch_pdl=overlap,
    )
    return y


@triton.jit
def _few_rows_kernel(
    x,
    weight,
    scales,
    factor,
    y,
    m,
    n,
    factor_stride,
    K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    LINE: tl.constexpr,
    PREFETCH: tl.constexpr,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    FACTOR: tl.constexpr,
    SOFTCAP: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The weight is the left operand, so that few rows of x pad only the narrow side: accumulators are [ROWS, BLOCK_M]."""
    features = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first_k = tl.program_id(1) * SPLIT_K
    chunk = first_k + tl.arange(0, BLOCK_K)
    weight_at = weight + features.to(tl.int64)[:, None] * K + chunk[None, :]
    up_at = weight_at + n.to(tl.int64) * K
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        _prefetch(weight, first_k, features, n, K, LINE, PREFETCH, GATED)
        tl.extra.cuda.gdc_wait()
    tokens = tl.arange(0, BLOCK_M)
    x_at = x + tokens[None, :] * K + chunk[:, None]
    sums = tl.zeros((ROWS, BLOCK_M), tl.float32)
    up_sums = tl.zeros((ROWS, BLOCK_M), tl.float32)
    for k in range(0, SPLIT_K, BLOCK_K):
        if EVEN_K:
            rows = tl.load(x_at + k, mask=(tokens < m)[None, :], other=0.0)
            inside = (features < n)[:, None]
        else:
            rows = tl.load(x_at + k, mask=(tokens < m)[None, :] & (k + chunk < K)[:, None], other=0.0)
            inside = (features < n)[:, None] & (k + chunk < K)[None, :]
        sums = tl.dot(tl.load(weight_at + k, mask=inside, other=0.0).to(rows.dtype), rows, sums, input_precision="ieee")
        if GATED:
            up_sums = tl.dot(tl.load(up_at + k, mask=inside, other=0.0).to(rows.dtype), rows, up_sums, input_precision="ieee")
    if scales is not None:
        sums *= tl.load(scales + features, mask=features < n, other=0.0)[:, None]
        if GATED:
            up_sums *= tl.load(scales + n + features, mask=features < n, other=0.0)[:, None]
    result = activate(sums, ACTIVATION)
    if GATED:
        result *= up_sums
    valid = (features < n)[:, None] & (tokens < m)[None, :]
    if FACTOR:
        result *= tl.load(factor + tokens[None, :] * factor_stride + features[:, None], mask=valid, other=0.0).to(tl.float32)
    if SOFTCAP is not None:
        result = softcap(result, SOFTCAP)
    row = tl.program_id(1) * m + tokens
    tl.store(y + row[None, :].to(tl.int64) * n + features[:, None], result.to(y.dtype.element_ty), mask=valid)


@triton.jit
def _prefetch(weight, first_k, features, n, K: tl.constexpr, LINE: tl.constexpr, LINES: tl.constexpr, GATED: tl.constexpr):
    """Asks for the start of each of the program's weight rows to be brought to L2: LINES of LINE elements, 128 bytes."""
    pointers = weight + tl.minimum(features, n - 1).to(tl.int64)[:, None] * K + first_k + tl.arange(0, LINES)[None, :] * LINE
    _prefetch_lines(pointers)
    if GATED:
        _prefetch_lines(pointers + n.to(tl.int64) * K)


@triton.jit
def _prefetch_lines(pointers):
    addresses = pointers.to(tl.int64, bitcast=True)
    tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [addresses], dtype=tl.int32, is_pure=False, pack=1)
