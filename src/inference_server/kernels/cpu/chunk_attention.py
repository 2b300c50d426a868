"""Paged attention of rows with several new tokens on a CPU's matrix unit, read straight from the bfloat16 cache.

An item is up to ITEM_TILES tiles of queries of one KV head; a query is one head of one token. Keys are taken KEYS at a time, at fixed
positions of the sequence, with the online softmax of FlashAttention (arXiv:2205.14135). They are brought into the unit's order once an
item, so that what is read from the cache lies in the nearest memory for all its queries. Queries and probabilities are multiplied as
float32 (see `tiles`).
"""

from torch import Tensor

from inference_server.kernels.cpu.code import BFloats, Code, Float, Floats, Int, Int32s, Ints
from inference_server.kernels.cpu.jit import CompiledKernel, cache_at, floats_at, num_threads
from inference_server.kernels.cpu.tiles import (
    COLUMN_TILES,
    COLUMNS,
    DEPTH,
    SIDE,
    TERMS,
    configure,
    multiply,
    release,
    split_row,
    tile_configs,
)
from inference_server.kernels.cpu.vectors import Words, float_vector, transposed

KEYS = COLUMNS
ITEM_TILES = 8  # so many fit, with everything they need, into the second-level cache
MAX_HEAD_DIM = 512


class ChunkAttention:
    """`reference.paged_attention`, a row at a time."""

    def __init__(self, kernel: CompiledKernel) -> None:
        self._kernel, self._configs = kernel, tile_configs()

    @staticmethod
    def serves(head_dim: int) -> bool:
        """Whether heads of this size come out even in tiles."""
        return head_dim % COLUMNS == 0 and head_dim <= MAX_HEAD_DIM

    def __call__(
        self, q: Tensor, key: Tensor, value: Tensor, out: Tensor, table: Tensor, num_before: int, window: int, scale: float
    ) -> None:
        """q, out [tokens, num_heads, head_dim], the first token at position num_before; key, value as in `reference.write_kv`.

        table: int32 [blocks]. window: at least 1.
        """
        tokens, num_heads, head_dim = q.shape
        _, block_size, num_kv_heads, _ = key.shape
        num_tiles = -(-tokens * num_heads // num_kv_heads // SIDE)
        work = num_heads * tokens * min(window + tokens, num_before + tokens) * head_dim // 4
        item_tiles = min(ITEM_TILES, -(-num_tiles * num_kv_heads // num_threads(work)))
        addresses = floats_at(q), cache_at(key), cache_at(value), table.data_ptr(), floats_at(out), self._configs.data_ptr()
        sizes = item_tiles, num_heads, num_kv_heads, head_dim, block_size, key.stride(0), num_before, tokens, window
        self._kernel(work, num_kv_heads * -(-num_tiles // item_tiles), *addresses, *sizes, scale)


def chunk_attention(
    code: Code,
    item: Int,
    q: Floats,
    key: Words,
    value: Words,
    table: Int32s,
    out: Floats,
    configs: Words,
    item_tiles: Int,
    num_heads: Int,
    num_kv_heads: Int,
    head_dim: Int,
    block_size: Int,
    block_stride: Int,
    num_before: Int,
    num_new: Int,
    window: Int,
    scale: Float,
) -> None:
    """See `ChunkAttention`. item_tiles: tiles of queries of an item, at most ITEM_TILES; the items of a KV head follow one another."""
    group = num_heads // num_kv_heads
    num_queries = num_new * group  # of a KV head; query i is of token i // group
    item_queries = item_tiles * SIDE
    items_of_head = (num_queries + item_queries - 1) // item_queries
    kv_head, first_query = item // items_of_head, item % items_of_head * item_queries
    queries_here = code.clamp(num_queries - first_query, code.integer(1), item_queries)
    rows_here = (queries_here + SIDE - 1) // SIDE * SIDE  # what fills the last tile repeats the last query

    def query_at(row: Int) -> Int:
        return first_query + code.clamp(row, code.integer(0), queries_here - 1)

    def position_of(query: Int) -> Int:
        return num_before + query // group

    def oldest_of(position: Int) -> Int:
        return code.select(position < window, code.integer(0), position - window + 1)

    def head_at(query: Int) -> Int:
        """Where the query and its output begin."""
        return (query // group * num_heads + kv_head * group + query % group) * head_dim

    oldest, last = oldest_of(position_of(first_query)), position_of(query_at(queries_here))
    maxima, totals = code.memory(Floats, ITEM_TILES * SIDE), code.memory(Floats, ITEM_TILES * SIDE)
    queries = code.memory(BFloats, ITEM_TILES * SIDE * MAX_HEAD_DIM * TERMS)
    sums = code.memory(Floats, ITEM_TILES * SIDE * MAX_HEAD_DIM)  # of values, each weighted by exp(score - maximum of its query)
    with code.loop(rows_here) as row:
        maxima[row], totals[row] = code.number(-1e30), code.number(0.0)
        split_row(code, q + head_at(query_at(row)), queries, row, head_dim)
    with code.loop(rows_here * head_dim) as i:
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
        with code.loop(rows_here, step=SIDE) as first_row:
            multiply(code, queries + first_row * head_dim * TERMS, keys, scores, head_dim // DEPTH, KEYS)
            with code.loop(SIDE) as r:
                row = first_row + r
                position = position_of(query_at(row))
                visible = first_key, oldest_of(position), position
                _softmax(code, scores + r * KEYS, scale, visible, maxima + row, totals + row, sums + row * head_dim, head_dim)
                split_row(code, scores + r * KEYS, weights, r, KEYS)
            with code.loop(head_dim // COLUMNS) as d:
                matrix: Words = values + d * (KEYS * COLUMNS // 2)
                multiply(code, weights, matrix, sums + (first_row * head_dim + d * COLUMNS), KEYS // DEPTH, head_dim, add=True)
    release(code)
    with code.loop(queries_here) as row:
        factor = code.number(1.0) / totals[row]
        sum_: Floats = sums + row * head_dim
        target: Floats = out + head_at(first_query + row)
        with code.loop(head_dim) as d:
            target[d] = sum_[d] * factor


def _order_keys(code: Code, key: Words, offsets: Ints, keys: Words, head_dim: Int) -> None:
    """Write keys in the order of a matrix of `tiles`: keys as columns, head_dim as k."""
    with code.loop(head_dim // DEPTH) as step, code.loop(COLUMN_TILES) as tile:
        columns = [key.vector(offsets[tile * SIDE + j] + step * SIDE, SIDE) for j in range(SIDE)]
        for pair, words in enumerate(transposed(columns)):
            words.store(keys, ((tile * (head_dim // DEPTH) + step) * SIDE + pair) * SIDE)


def _order_values(code: Code, value: Words, offsets: Ints, values: Words, head_dim: Int) -> None:
    """Write values in the order of a matrix of `tiles`: head_dim as columns, keys as k."""
    with code.loop(KEYS // 2) as pair, code.loop(head_dim // DEPTH) as two_tiles:
        first, second = (value.vector(offsets[pair * 2 + i] + two_tiles * SIDE, SIDE) for i in range(2))
        for i, words in enumerate(first.interleave(second)):
            words.store(values, ((two_tiles * 2 + i) * (KEYS // 2) + pair) * SIDE)


def _softmax(
    code: Code, scores: Floats, scale: Float, visible: tuple[Int, Int, Int], maximum: Floats, total: Floats, sums: Floats, head_dim: Int
) -> None:
    """Turn scores[KEYS] into weights exp(scale * score - maximum of all keys so far). If that rises, sums and total are scaled to it.

    visible: the position of the first key, of the oldest and of the latest one that the query sees.
    """
    first_key, oldest, latest = visible
    with code.loop(KEYS) as j:
        scores[j] = code.select((first_key + j).within(oldest, latest), scores[j] * scale, code.number(-1e30))
    largest = float_vector(scores, 0, SIDE)
    for start in range(SIDE, KEYS, SIDE):
        largest = largest.maximum(float_vector(scores, start, SIDE))
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
