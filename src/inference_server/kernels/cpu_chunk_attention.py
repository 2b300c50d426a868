"""Paged attention of rows with several new tokens on a CPU's matrix unit, read straight from the bfloat16 cache.

An item is up to ITEM_TILES tiles of queries of one KV head, each query a token's head. Keys are taken KEYS at a time, at fixed positions of
the sequence, with the online softmax of FlashAttention (arXiv:2205.14135): brought into the unit's order once an item, so what is read of
the cache lies in the nearest memory for all of its queries. Queries and probabilities are multiplied as float32 (see `cpu_tiles`).
"""

import torch
from torch import Tensor
from torch.nn import functional

from inference_server.kernels.cpu_code import BFloats, Code, Float, Floats, Int, Int32s, Ints
from inference_server.kernels.cpu_jit import CompiledKernel, num_threads
from inference_server.kernels.cpu_tiles import COLUMN_TILES, COLUMNS, DEPTH, SIDE, STEP_WORDS, TERMS, configure, multiply, release, split, tile_configs
from inference_server.kernels.cpu_vectors import Words, float_vector, transposed

KEYS = COLUMNS
ITEM_TILES = 16
MAX_HEAD_DIM = 512


class ChunkAttention:
    """`reference.paged_attention`, a row at a time."""

    def __init__(self, split: CompiledKernel, attend: CompiledKernel) -> None:
        self._split, self._attend, self._configs = split, attend, tile_configs()

    @staticmethod
    def serves(head_dim: int) -> bool:
        return head_dim % COLUMNS == 0 and head_dim <= MAX_HEAD_DIM

    def __call__(self, q: Tensor, key: Tensor, value: Tensor, table: Tensor, num_before: int, window: int, scale: float) -> Tensor:
        """q [tokens, num_heads, head_dim], float32, whose first token is at position num_before; table int32 [blocks]; window: at least 1."""
        tokens, num_heads, head_dim = q.shape
        _, block_size, num_kv_heads, _ = key.shape
        group = num_heads // num_kv_heads
        by_kv_head = q.unflatten(1, (num_kv_heads, group)).transpose(0, 1).flatten(1, 2)  # [num_kv_heads, queries, head_dim]
        padded = functional.pad(by_kv_head, (0, 0, 0, -by_kv_head.shape[1] % SIDE)).contiguous()
        num_queries = padded.shape[1]
        terms = torch.empty(num_kv_heads * num_queries, TERMS * head_dim, dtype=torch.bfloat16)
        self._split(4 * padded.numel(), len(terms), padded.data_ptr(), terms.data_ptr(), head_dim)
        num_tiles, num_keys = num_queries // SIDE, min(window + tokens, num_before + tokens)
        work = len(terms) * num_keys * head_dim // 4
        item_tiles = min(ITEM_TILES, -(-num_tiles * num_kv_heads // num_threads(work)))
        out = padded  # its queries have been copied
        addresses = terms.data_ptr(), key.data_ptr(), value.data_ptr(), table.data_ptr(), out.data_ptr(), self._configs.data_ptr()
        sizes = num_tiles, item_tiles, group, num_kv_heads, head_dim, block_size, key.stride(0), num_before, tokens, window
        self._attend(work, num_kv_heads * -(-num_tiles // item_tiles), *addresses, *sizes, scale)
        return out[:, : tokens * group].unflatten(1, (tokens, group)).transpose(0, 1).flatten(1, 2)


def chunk_attention(
    code: Code,
    item: Int,
    queries: BFloats,
    key: Words,
    value: Words,
    table: Int32s,
    out: Floats,
    configs: Words,
    num_tiles: Int,
    item_tiles: Int,
    group: Int,
    num_kv_heads: Int,
    head_dim: Int,
    block_size: Int,
    block_stride: Int,
    num_before: Int,
    num_new: Int,
    window: Int,
    scale: Float,
) -> None:
    """queries: rows as in `cpu_tiles`, num_tiles tiles a KV head; out float32 `[num_kv_heads * num_tiles * SIDE, head_dim]`.

    Query i of a KV head is of token i // group; those behind the last token are computed as if they were its.
    """
    items_of_head = (num_tiles + item_tiles - 1) // item_tiles
    kv_head = item // items_of_head
    first_tile = item % items_of_head * item_tiles
    stop_tile = code.clamp(first_tile + item_tiles, first_tile, num_tiles)

    def position_of(query: Int) -> Int:
        return num_before + code.clamp(query // group, code.integer(0), num_new - 1)

    def oldest_of(position: Int) -> Int:
        return code.select(position < window, code.integer(0), position - window + 1)

    oldest, last = oldest_of(position_of(first_tile * SIDE)), position_of(stop_tile * SIDE - 1)
    maxima, totals = code.memory(Floats, ITEM_TILES * SIDE), code.memory(Floats, ITEM_TILES * SIDE)
    sums: Floats = out + (kv_head * num_tiles + first_tile) * head_dim * SIDE
    with code.loop((stop_tile - first_tile) * SIDE) as q:
        maxima[q], totals[q] = code.number(-1e30), code.number(0.0)
    with code.loop((stop_tile - first_tile) * SIDE * head_dim) as i:
        sums[i] = code.number(0.0)

    offsets = code.memory(Ints, KEYS)
    keys, values = code.memory(Words, KEYS * MAX_HEAD_DIM // 2), code.memory(Words, KEYS * MAX_HEAD_DIM // 2)
    scores, weights = code.memory(Floats, SIDE * KEYS), code.memory(BFloats, SIDE * KEYS * TERMS)
    configure(code, configs, SIDE)
    with code.loop(last + 1, start=oldest // KEYS * KEYS, step=KEYS) as first_key:
        with code.loop(KEYS) as j:
            # A place without a key repeats a neighbour: only slots that hold the row's own keys are read.
            place = code.clamp(first_key + j, oldest, last)
            slot = place % block_size * num_kv_heads + kv_head
            offsets[j] = (table[place // block_size] * block_stride + slot * head_dim) // 2
        _order_keys(code, key, offsets, keys, head_dim)
        _order_values(code, value, offsets, values, head_dim)
        with code.loop(stop_tile - first_tile) as tile:
            rows: BFloats = queries + (kv_head * num_tiles + first_tile + tile) * head_dim * (SIDE * TERMS)
            multiply(code, rows, keys, scores, head_dim // DEPTH, KEYS)
            with code.loop(SIDE) as r:
                q = tile * SIDE + r
                position = position_of(first_tile * SIDE + q)
                score: Floats = scores + r * KEYS
                visible = first_key, oldest_of(position), position
                _softmax(code, score, scale, visible, maxima + q, totals + q, sums + q * head_dim, head_dim)
                split(code, score, weights + r * DEPTH, KEYS // DEPTH)
            with code.loop(head_dim // COLUMNS) as d:
                target: Floats = sums + tile * head_dim * SIDE + d * COLUMNS
                multiply(code, weights, values + d * (KEYS // DEPTH * STEP_WORDS), target, KEYS // DEPTH, head_dim, add=True)
    release(code)
    with code.loop((stop_tile - first_tile) * SIDE) as q:
        factor = code.number(1.0) / totals[q]
        sum_: Floats = sums + q * head_dim
        with code.loop(head_dim) as d:
            sum_[d] = sum_[d] * factor


def _order_keys(code: Code, key: Words, offsets: Ints, keys: Words, head_dim: Int) -> None:
    """Keys as columns, head_dim as k."""
    with code.loop(head_dim // DEPTH) as step, code.loop(COLUMN_TILES) as tile:
        columns = [key.vector(offsets[tile * SIDE + j] + step * SIDE, SIDE) for j in range(SIDE)]
        for pair, words in enumerate(transposed(columns)):
            words.store(keys, ((step * COLUMN_TILES + tile) * SIDE + pair) * SIDE)


def _order_values(code: Code, value: Words, offsets: Ints, values: Words, head_dim: Int) -> None:
    """head_dim as columns, keys as k."""
    with code.loop(KEYS // 2) as pair, code.loop(head_dim // DEPTH) as two_tiles:
        first, second = (value.vector(offsets[pair * 2 + i] + two_tiles * SIDE, SIDE) for i in range(2))
        block = (two_tiles // 2 * (KEYS // DEPTH) + pair // SIDE) * STEP_WORDS
        for i, words in enumerate(first.interleave(second)):
            words.store(values, block + ((two_tiles % 2 * 2 + i) * SIDE + pair % SIDE) * SIDE)


def _softmax(
    code: Code, scores: Floats, scale: Float, visible: tuple[Int, Int, Int], maximum: Floats, total: Floats, sums: Floats, head_dim: Int
) -> None:
    """scores[KEYS] to weights exp(scale * score - maximum), where the maximum of all keys so far is new, sums and total are scaled to it.

    visible: the position of the first key, of the oldest and of the latest one that the query sees.
    """
    first_key, oldest, latest = visible
    with code.loop(KEYS) as j:
        scores[j] = code.select((first_key + j).within(oldest, latest), scores[j] * scale, code.number(-1e30))
    largest = float_vector(scores, 0, SIDE)
    for j in range(SIDE, KEYS, SIDE):
        largest = largest.maximum(float_vector(scores, j, SIDE))
    before = maximum[0]
    highest = code.maximum(largest.largest(), before)
    with code.when(before < highest):
        decay = code.exp(before - highest)
        maximum[0], total[0] = highest, total[0] * decay
        with code.loop(head_dim) as d:
            sums[d] = sums[d] * decay
    added = code.variable(code.number(0.0))
    with code.loop(KEYS) as j:
        score = scores[j] - highest
        weight = code.select(score < -64.0, code.number(0.0), code.exp(score))  # numbers near 2^-126 would be slow to split
        scores[j] = weight
        added.value = added.value + weight
    total[0] = total[0] + added.value
