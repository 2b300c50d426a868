"""A linear layer of one row, where the time is that of reading the weight once: y = epilogue(x @ W.T), in one launch.

A program takes a few output features over the whole of K in one go, so that all its weights are in flight before it waits for x; on Hopper
that is while the kernel before still runs. Where it takes several such tiles in turn, the weights of the next one are in flight while it
multiplies by those of the one before. It can also do the norm and the addition that lie before the layer: each program repeats them, which
costs less than a launch. Sums are in float32 and rounded once. A weight may be int8 with a float32 scale for each output feature; it is
multiplied as integers, by activations in 16-bit fixed point, where these come in two bytes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.gpu.activations import activate, softcap
from inference_server.kernels.gpu.fixed_point import WORD, fixed_point, multiplies_bytes, products
from inference_server.kernels.gpu.fused_norm import changes_stream
from inference_server.kernels.gpu.launch import LaunchConfig, overlaps_launches
from inference_server.kernels.ops import AddNorm, Epilogue

MAX_OVERLAPPED_PROGRAMS = 131072  # with twice as many, the signal to the next kernel was seen to halve the speed on an H200


def one_row(
    stream: Tensor | None,
    update: Tensor,
    norm: AddNorm | None,
    weight: Tensor,
    epilogue: Epilogue,
    factor: Tensor | None,
    config: LaunchConfig,
    scales: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`FusedLinear.after` for an update [1, K], everything contiguous; without a norm just the product, and the stream is the update."""
    k = update.shape[1]
    n = weight.shape[0] // (2 if epilogue.gated else 1)
    y = torch.empty(1, n, dtype=epilogue.out_dtype or update.dtype, device=update.device)
    changes = norm is not None and changes_stream(stream, update, norm)
    total = torch.empty_like(update) if changes else update
    tiles = triton.cdiv(n, config.rows)
    programs = min(config.programs or tiles, tiles)
    overlap = overlaps_launches(update.device) and programs <= MAX_OVERLAPPED_PROGRAMS
    fixed = scales is not None and update.element_size() == 2 and k % WORD == 0
    _one_row_kernel[(programs,)](
        update,
        stream,
        norm and norm.post,
        norm and norm.pre,
        weight.view(torch.int32) if fixed else weight,
        scales,
        factor,
        total,
        y,
        n,
        norm.scale if norm else 1.0,
        norm.eps if norm else 0.0,
        K=k,
        ROWS=config.rows,
        BLOCK_K=config.block_k,
        TURNS=triton.cdiv(tiles, programs),
        RESIDUAL=stream is not None,
        POST=norm is not None and norm.post is not None,
        PRE=norm is not None and norm.pre is not None,
        HIDDEN=changes,
        GATED=epilogue.gated,
        ACTIVATION=epilogue.activation,
        FACTOR=factor is not None,
        SOFTCAP=epilogue.softcap,
        PER_ELEMENT=WORD if fixed else 1,
        BYTES=fixed and multiplies_bytes(update.device),
        OVERLAP=overlap,
        num_warps=config.num_warps,
        launch_pdl=overlap,
    )
    return total, y


@triton.jit
def _one_row_kernel(
    x,
    residual,
    post,
    pre,
    weight,
    scales,
    factor,
    hidden,
    y,
    n,
    scale,
    eps,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TURNS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    POST: tl.constexpr,
    PRE: tl.constexpr,
    HIDDEN: tl.constexpr,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    FACTOR: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PER_ELEMENT: tl.constexpr,
    BYTES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Tuples hold the chunks of K, each a tensor in registers: K need not be a power of two.

    PER_ELEMENT: how many weights an element of `weight` holds; if more than one, they are int8 and multiplied as integers.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    elements: tl.constexpr = K // PER_ELEMENT
    block: tl.constexpr = BLOCK_K // PER_ELEMENT
    next_features = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    next_weights = _tile(weight, next_features, n, elements, block)
    next_ups = ()
    if GATED:
        next_ups = _tile(weight + n.to(tl.int64) * elements, next_features, n, elements, block)
    post_weights = ()
    pre_weights = ()
    if POST:
        post_weights = _chunks(post, K, BLOCK_K)
    if PRE:
        pre_weights = _chunks(pre, K, BLOCK_K)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()

    values = _chunks(x, K, BLOCK_K)
    before = ()
    if RESIDUAL:
        before = _chunks(residual, K, BLOCK_K)
    dtype = x.dtype.element_ty
    if POST:
        values = _normed(values, post_weights, eps, K, BLOCK_K, dtype)
    if HIDDEN:
        summed = ()
        for i in tl.static_range(len(values)):
            columns = i * BLOCK_K + tl.arange(0, BLOCK_K)
            value = values[i]
            if RESIDUAL:
                value += before[i]
            value = (value.to(dtype).to(tl.float32) * scale).to(dtype)
            if tl.program_id(0) == 0:
                tl.store(hidden + columns, value, mask=columns < K)
            summed += (value.to(tl.float32),)
        values = summed
    if PRE:
        values = _normed(values, pre_weights, eps, K, BLOCK_K, dtype)
    if PER_ELEMENT > 1:
        values = fixed_point(values, block)

    for turn in tl.static_range(TURNS):
        features, weights, ups = next_features, next_weights, next_ups
        if turn + 1 < TURNS:
            next_features = features + tl.num_programs(0) * ROWS
            next_weights = _tile(weight, next_features, n, elements, block)
            if GATED:
                next_ups = _tile(weight + n.to(tl.int64) * elements, next_features, n, elements, block)
        valid = features < n
        result = _products(weights, values, ROWS, block, PER_ELEMENT, BYTES)
        if scales is not None:
            result *= tl.load(scales + features, mask=valid, other=0.0)
        result = activate(result, ACTIVATION)
        if GATED:
            up = _products(ups, values, ROWS, block, PER_ELEMENT, BYTES)
            if scales is not None:
                up *= tl.load(scales + n + features, mask=valid, other=0.0)
            result *= up
        if FACTOR:
            result *= tl.load(factor + features, mask=valid, other=0.0).to(tl.float32)
        if SOFTCAP is not None:
            result = softcap(result, SOFTCAP)
        tl.store(y + features, result.to(y.dtype.element_ty), mask=valid)


@triton.jit
def _tile(weight, features, n, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Rows of the weight, as a tuple of chunks [rows, BLOCK_K]; K and BLOCK_K in elements of `weight`."""
    tile = ()
    for k in tl.static_range(0, K, BLOCK_K):
        columns = k + tl.arange(0, BLOCK_K)
        inside = (features < n)[:, None] & (columns < K)[None, :]
        at = weight + features.to(tl.int64)[:, None] * K + columns[None, :]
        tile += (tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first"),)
    return tile


@triton.jit
def _products(weights, values, ROWS: tl.constexpr, BLOCK: tl.constexpr, PER_ELEMENT: tl.constexpr, BYTES: tl.constexpr):
    """Rows of the weight times the values, or times what `fixed_point` made of them: float32 [ROWS]."""
    if PER_ELEMENT > 1:
        result = products(weights, values, ROWS, BLOCK, BYTES)
    else:
        sums = tl.zeros((ROWS, BLOCK), tl.float32)
        for i in tl.static_range(len(values)):
            sums += weights[i].to(tl.float32) * values[i][None, :]
        result = tl.sum(sums, 1)
    return result


@triton.jit
def _chunks(vector, K: tl.constexpr, BLOCK_K: tl.constexpr):
    chunks = ()
    for k in tl.static_range(0, K, BLOCK_K):
        columns = k + tl.arange(0, BLOCK_K)
        chunks += (tl.load(vector + columns, mask=columns < K, other=0.0).to(tl.float32),)
    return chunks


@triton.jit
def _normed(values, norm, eps, K: tl.constexpr, BLOCK_K: tl.constexpr, dtype: tl.constexpr):
    """RMS norm of the K numbers of a tuple of chunks, rounded to dtype and widened again."""
    squares = tl.zeros((BLOCK_K,), tl.float32)
    for i in tl.static_range(len(values)):
        squares += values[i] * values[i]
    inverse_rms = tl.rsqrt(tl.sum(squares) / K + eps)
    normed = ()
    for i in tl.static_range(len(values)):
        normed += ((values[i] * inverse_rms * norm[i]).to(dtype).to(tl.float32),)
    return normed
