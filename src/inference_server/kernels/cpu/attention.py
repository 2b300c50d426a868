"""Paged attention of rows with one new token, on the CPU: read straight from the bfloat16 cache through the block tables.

An item is one KV head of a row with all query heads that share it, or some of them. Keys are taken in tiles at fixed positions of the
sequence, with the online softmax of FlashAttention (arXiv:2205.14135). Longer rows are better served by matrix products, which
`reference` leaves to torch.
"""

from inference_server.kernels.cpu.code import BFloats, Code, Float, Floats, Int, Int32s, Ints

TILE = 16  # keys of one step of the online softmax
TOGETHER = 8  # keys of a tile in one loop over head_dim: as many sums or factors as registers hold beside their operands
MAX_ITEM_HEADS = 64


def decode_attention(
    code: Code,
    item: Int,
    q: Floats,
    key: BFloats,
    value: BFloats,
    tables: Int32s,
    seq_lens: Int32s,
    out: Floats,
    num_heads: Int,
    num_kv_heads: Int,
    head_dim: Int,
    item_heads: Int,
    block_size: Int,
    block_stride: Int,
    table_width: Int,
    window: Int,
    scale: Float,
) -> None:
    """q, out `[rows, num_heads, head_dim]`; tables `[rows, table_width]`; the rest as in `reference.paged_attention`.

    item_heads divides num_heads / num_kv_heads; items = rows * num_heads / item_heads. window: at least 1.
    """
    row = item * item_heads // num_heads
    first_head = item * item_heads % num_heads
    kv_head = first_head // (num_heads // num_kv_heads)
    position = seq_lens[row] - 1
    oldest = code.select(position < window, code.integer(0), position - window + 1)
    start = (row * num_heads + first_head) * head_dim
    queries: Floats = q + start
    sums: Floats = out + start  # of values, each weighted by exp(score - maximum of its head)
    maxima, totals = code.memory(Floats, MAX_ITEM_HEADS), code.memory(Floats, MAX_ITEM_HEADS)
    with code.loop(item_heads) as head:
        maxima[head], totals[head] = code.number(-1e30), code.number(0.0)
    with code.loop(item_heads * head_dim) as i:
        sums[i] = code.number(0.0)

    table: Int32s = tables + row * table_width
    offsets, weights = code.memory(Ints, TILE), code.memory(Floats, TILE)
    with code.loop(position + 1, start=oldest // TILE * TILE, step=TILE) as first_key:
        with code.loop(TILE) as j:
            # A place without a key repeats a neighbour: only slots that hold the row's own keys are read.
            place = code.clamp(first_key + j, oldest, position)
            slot = place % block_size * num_kv_heads + kv_head
            offsets[j] = table[place // block_size] * block_stride + slot * head_dim
        with code.loop(item_heads) as head:
            query: Floats = queries + head * head_dim
            for u in range(0, TILE, TOGETHER):
                _scores(code, query, [key + offsets[u + j] for j in range(TOGETHER)], weights + code.integer(u), head_dim)
            maximum, total = code.variable(maxima[head]), code.variable(code.number(0.0))
            with code.loop(TILE) as j:
                weights[j] = code.select((first_key + j).within(oldest, position), weights[j] * scale, code.number(-1e30))
            with code.loop(TILE) as j:
                maximum.value = code.maximum(maximum.value, weights[j])
            highest = maximum.value
            with code.loop(TILE) as j:
                weights[j] = code.exp(weights[j] - highest)
            with code.loop(TILE) as j:
                total.value = total.value + weights[j]
            decay = code.exp(maxima[head] - highest)
            maxima[head], totals[head] = highest, totals[head] * decay + total.value
            sum_: Floats = sums + head * head_dim
            for u in range(0, TILE, TOGETHER):
                values = [value + offsets[u + j] for j in range(TOGETHER)]
                _accumulate(code, sum_, values, [weights[u + j] for j in range(TOGETHER)], head_dim, decay if u == 0 else None)
    with code.loop(item_heads) as head:
        sum_ = sums + head * head_dim
        factor = code.number(1.0) / totals[head]
        with code.loop(head_dim) as d:
            sum_[d] = sum_[d] * factor


def _scores(code: Code, query: Floats, keys: list[BFloats], scores: Floats, head_dim: Int) -> None:
    products = [code.variable(code.number(0.0)) for _ in keys]
    with code.loop(head_dim) as d:
        x = query[d]
        for product, key in zip(products, keys, strict=True):
            product.value = product.value + x * key[d]
    for j, product in enumerate(products):
        scores[j] = product.value


def _accumulate(code: Code, sums: Floats, values: list[BFloats], weights: list[Float], head_dim: Int, decay: Float | None) -> None:
    with code.loop(head_dim) as d:
        total = sums[d] if decay is None else sums[d] * decay
        for value, weight in zip(values, weights, strict=True):
            total = total + weight * value[d]
        sums[d] = total
