"""A linear layer of 2 to 256 rows, where reading the weight once is most of the time or much of it: y = epilogue(x @ W.T), in one launch.

It goes through the matrix units, with x as the narrow operand. Sums are in float32 and rounded once. A program may compute several tiles
in turn, so that it waits for its first loads only once. A weight may be int8 with a float32 scale for each output feature: it is widened
in registers. Where only the highest feature of a row is wanted, a tile writes its best and no y.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.gpu.activations import activate, softcap
from inference_server.kernels.gpu.draw import best_of, pick
from inference_server.kernels.gpu.launch import LaunchConfig, overlaps_launches
from inference_server.kernels.ops import Epilogue

MAX_ROWS = 256  # that one tile may have
PREFETCH_LINES = 4  # lines of 128 bytes of a weight row, asked for while the kernel before still runs: more take longer


def padded_rows(rows: int) -> int:
    """The width that a kernel is compiled for: a power of two that the matrix units take."""
    return max(16, triton.next_power_of_2(rows))


def few_rows(
    x: Tensor, weight: Tensor, epilogue: Epilogue, factor: Tensor | None, config: LaunchConfig, scales: Tensor | None = None
) -> Tensor:
    """`FusedLinear` for x [M, K], M <= 256; x and weight contiguous.

    With `config.splits` > 1 it returns the partial sums [splits, M, N] in float32. Raises ValueError then, unless the epilogue is partial
    and does nothing else to them.
    """
    m, n = len(x), _num_features(weight, epilogue)
    if config.splits == 1:
        y = torch.empty(m, n, dtype=epilogue.out_dtype or x.dtype, device=x.device)
    elif replace(epilogue, out_dtype=None) == Epilogue(partial=True):
        y = torch.empty(config.splits, m, n, dtype=torch.float32, device=x.device)
    else:
        raise ValueError(f"{epilogue} cannot be left in partial sums")
    _launch(x, weight, epilogue, factor, config, scales, y, None)
    return y


def highest_of_few_rows(x: Tensor, weight: Tensor, epilogue: Epilogue, config: LaunchConfig, scales: Tensor | None = None) -> Tensor:
    """The feature [M] int64 of the highest of each row of `few_rows`, the lowest of equals; `config.splits` is 1."""
    m, n = len(x), _num_features(weight, epilogue)
    values = torch.empty(m, triton.cdiv(n, config.rows), dtype=epilogue.out_dtype or x.dtype, device=x.device)
    ids = torch.empty_like(values, dtype=torch.int32)
    _launch(x, weight, epilogue, None, config, scales, values, ids)
    return pick(values, ids, n, torch.empty(m, dtype=torch.int64, device=x.device))


def _num_features(weight: Tensor, epilogue: Epilogue) -> int:
    return weight.shape[0] // (2 if epilogue.gated else 1)


def _launch(
    x: Tensor,
    weight: Tensor,
    epilogue: Epilogue,
    factor: Tensor | None,
    config: LaunchConfig,
    scales: Tensor | None,
    y: Tensor,
    ids: Tensor | None,
) -> None:
    """Write the layer's result into y; with ids, the highest of each tile into y and its feature into ids, both [M, tiles]."""
    m, k = x.shape
    n = _num_features(weight, epilogue)
    split_k = triton.cdiv(triton.cdiv(k, config.splits), config.block_k) * config.block_k
    overlap = overlaps_launches(x.device)
    tiles = triton.cdiv(n, config.rows)
    block_m = min(padded_rows(m), config.tokens or MAX_ROWS)
    _few_rows_kernel[(triton.cdiv(m, block_m), min(config.programs or tiles, tiles), config.splits)](
        x,
        weight,
        scales,
        factor,
        y,
        ids,
        m,
        n,
        factor.stride(0) if factor is not None else 0,
        K=k,
        SPLIT_K=split_k,
        EVEN_K=split_k * config.splits == k,
        ROWS=config.rows,
        BLOCK_M=block_m,
        BLOCK_K=config.block_k,
        LINE=128 // weight.element_size(),
        PREFETCH=1 << (max(1, min(PREFETCH_LINES, min(k, split_k) * weight.element_size() // 128)).bit_length() - 1),
        GATED=epilogue.gated,
        ACTIVATION=epilogue.activation,
        FACTOR=factor is not None,
        SOFTCAP=epilogue.softcap,
        IN_TURNS=config.programs > 0,
        OVERLAP=overlap,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        launch_pdl=overlap,
    )


@triton.jit(do_not_specialize=["m"])
def _few_rows_kernel(
    x,
    weight,
    scales,
    factor,
    y,
    ids,
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
    IN_TURNS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The weight is the left operand, so that few rows of x pad only the narrow side: accumulators are [weight rows, BLOCK_M].

    Grid: tiles of x, which read the same weights side by side; tiles of the weight, or the programs that take turns at them; splits.

    Gated, the weight rows are those of the features' gates, then of their ups: one product of twice the height.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        _prefetch(weight, tl.program_id(2) * SPLIT_K, tl.program_id(1) * ROWS, n, K, ROWS, LINE, PREFETCH, GATED)
        tl.extra.cuda.gdc_wait()
    matrices: tl.constexpr = 2 if GATED else 1
    tile_row = tl.arange(0, matrices * ROWS)
    chunk = tl.program_id(2) * SPLIT_K + tl.arange(0, BLOCK_K)
    tokens = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside_m = (tokens < m)[None, :]
    x_at = x + tokens[None, :] * K + chunk[:, None]
    to_row = (tl.program_id(2) * m + tokens)[None, :].to(tl.int64) * n
    for tile in tl.range(tl.program_id(1), tl.cdiv(n, ROWS), tl.num_programs(1), flatten=IN_TURNS):
        feature = tile * ROWS + tile_row % ROWS
        inside_n = (feature < n)[:, None]
        weight_row = feature + tile_row // ROWS * n
        weight_at = weight + weight_row.to(tl.int64)[:, None] * K + chunk[None, :]
        sums = tl.zeros((matrices * ROWS, BLOCK_M), tl.float32)
        for k in range(0, SPLIT_K, BLOCK_K):
            if EVEN_K:
                rows = tl.load(x_at + k, mask=inside_m, other=0.0)
                part = tl.load(weight_at + k, mask=inside_n, other=0.0)
            else:
                rows = tl.load(x_at + k, mask=inside_m & (k + chunk < K)[:, None], other=0.0)
                part = tl.load(weight_at + k, mask=inside_n & (k + chunk < K)[None, :], other=0.0)
            sums = tl.dot(part.to(rows.dtype), rows, sums, input_precision="ieee")
        if scales is not None:
            sums *= tl.load(scales + weight_row[:, None], mask=inside_n, other=0.0)
        if GATED:
            gate, up = tl.split(tl.permute(tl.reshape(sums, (2, ROWS, BLOCK_M)), (1, 2, 0)))
            result = activate(gate, ACTIVATION) * up
        else:
            result = activate(sums, ACTIVATION)
        features = tile * ROWS + tl.arange(0, ROWS)
        valid = (features < n)[:, None] & inside_m
        if FACTOR:
            result *= tl.load(factor + tokens[None, :] * factor_stride + features[:, None], mask=valid, other=0.0).to(tl.float32)
        if SOFTCAP is not None:
            result = softcap(result, SOFTCAP)
        result = result.to(y.dtype.element_ty)
        if ids is None:
            tl.store(y + to_row + features[:, None], result, mask=valid)
        else:
            best, best_id = best_of(tl.where(valid, result, float("-inf")), features[:, None], n)
            to = tokens * tl.cdiv(n, ROWS) + tile
            tl.store(y + to, best, mask=tokens < m)
            tl.store(ids + to, best_id, mask=tokens < m)


@triton.jit
def _prefetch(weight, first_k, first, n, K: tl.constexpr, ROWS: tl.constexpr, LINE: tl.constexpr, LINES: tl.constexpr, GATED: tl.constexpr):
    """Asks for the start of each weight row of the program's first tile to be brought to L2: LINES lines of LINE elements (128 bytes)."""
    features = tl.minimum(first + tl.arange(0, ROWS), n - 1)
    pointers = weight + features.to(tl.int64)[:, None] * K + first_k + tl.arange(0, LINES)[None, :] * LINE
    _prefetch_lines(pointers)
    if GATED:
        _prefetch_lines(pointers + n.to(tl.int64) * K)


@triton.jit
def _prefetch_lines(pointers):
    addresses = pointers.to(tl.int64, bitcast=True)
    tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [addresses], dtype=tl.int32, is_pure=False, pack=1)
