"""Paged attention in Triton for rows of several tokens: prompts, chunks of prompts, and both beside decode rows.

A program takes a tile of one row's queries, all heads that share a KV head packed into it, and walks the keys once (FlashAttention-2,
arXiv:2307.08691). The grid depends only on how many tokens and rows there are at most: which row a tile belongs to is looked up on the
device. The reference is `reference.paged_attention`. Importing this needs Triton.
"""

import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.gpu.attention_tuning import PrefillLaunch, prefill_launch

LOG2_E = 1.4426950408889634


def prefill_attention(
    q: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    block_tables: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    window: int | None,
    slots: Tensor | None = None,
    launch: PrefillLaunch | None = None,
) -> None:
    """Write the attention of all rows that have two tokens or more; the tokens of other rows stay untouched in `out`.

    Arguments are those of `reference.paged_attention`; out is like q. slots: as in `StepRows`. head_dim is a power of two from 16 up;
    its elements, and nothing else, must be contiguous in q, key and value.
    """
    num_tokens, num_heads, head_dim = q.shape
    block_size, num_kv_heads = key.shape[1:3]
    group = num_heads // num_kv_heads
    launch = launch or prefill_launch(head_dim, key.element_size(), q.device)
    padded_group = triton.next_power_of_2(group)
    block_m = max(launch.block_m, padded_group)
    num_rows = len(seq_lens)
    max_tiles = num_tokens // (block_m // padded_group) + num_rows
    value_dim = min(launch.value_dim, head_dim)
    _prefill_kernel[(max_tiles, num_kv_heads, head_dim // value_dim)](
        q,
        key,
        value,
        out,
        block_tables,
        cu_seqlens_q,
        seq_lens,
        slots,
        num_rows,
        scale * LOG2_E,
        *q.stride()[:2],
        *out.stride()[:2],
        *key.stride()[:3],
        block_tables.stride(0),
        WINDOW=window or 0,
        BLOCK_SIZE=block_size,
        GROUP=group,
        PADDED_GROUP=padded_group,
        HEAD_DIM=head_dim,
        BLOCK_M=block_m,
        BLOCK_N=launch.block_n,
        VALUE_DIM=value_dim,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )


@triton.jit
def _row_of(tile, cu_seqlens_ptr, num_rows, BLOCK_Q: tl.constexpr):
    """The row that a tile belongs to and the row's first tile: row r has the tiles from cu_seqlens[r] // BLOCK_Q + r on."""
    low, high = 0, num_rows
    while low + 1 < high:
        middle = (low + high) // 2
        if tl.load(cu_seqlens_ptr + middle) // BLOCK_Q + middle <= tile:
            low = middle
        else:
            high = middle
    return low, tl.load(cu_seqlens_ptr + low) // BLOCK_Q + low


@triton.jit
def _attend(
    best,
    total,
    acc,
    q,
    query,
    first,
    stop,
    last_key,
    key_ptr,
    value_ptr,
    table,
    scale,
    stride_block,
    stride_slot,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    VALUE_DIM: tl.constexpr,
):
    """Continue the running softmax (best, total, acc) of a tile over the keys [first, stop). query: the queries' positions.

    MASKED: some query does not see some of the keys. If not, stop - first is a multiple of BLOCK_N.
    """
    dim = tl.arange(0, HEAD_DIM)
    value_dim = tl.program_id(2) * VALUE_DIM + tl.arange(0, VALUE_DIM)
    position = first + tl.arange(0, BLOCK_N)
    inside = tl.minimum(position, last_key)  # past the end the last key is read again, so free blocks never are
    block = tl.load(table + inside // BLOCK_SIZE)
    for _ in range(first, stop, BLOCK_N):
        where = block.to(tl.int64) * stride_block + (inside % BLOCK_SIZE) * stride_slot
        k = tl.load(key_ptr + where[:, None] + dim[None, :])  # [BLOCK_N, HEAD_DIM]
        scores = tl.dot(q, tl.trans(k), input_precision="tf32x3")  # [BLOCK_M, BLOCK_N]
        inside = tl.minimum(position + BLOCK_N, last_key)
        block = tl.load(table + inside // BLOCK_SIZE)  # of the next tile, so that its keys need not wait for their address
        if MASKED:
            seen = position[None, :] <= query[:, None]
            if WINDOW:
                seen &= position[None, :] > query[:, None] - WINDOW
            scores = tl.where(seen, scores, float("-inf"))
        top = tl.maximum(best, tl.max(scores, 1) * scale)  # scale is positive; below, scaling joins the subtraction
        weights = tl.exp2(scores * scale - top[:, None])
        fade = tl.exp2(best - top)
        v = tl.load(value_ptr + where[:, None] + value_dim[None, :])
        total = total * fade + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * fade[:, None], input_precision="tf32x3")
        best = top
        position += BLOCK_N
    return best, total, acc


@triton.jit(do_not_specialize=["num_rows", "stride_table"])
def _prefill_kernel(
    q_ptr,
    key_ptr,
    value_ptr,
    out_ptr,
    tables_ptr,
    cu_seqlens_ptr,
    seq_lens_ptr,
    slots_ptr,
    num_rows,
    scale,
    stride_q,
    stride_q_head,
    stride_out,
    stride_out_head,
    stride_block,
    stride_slot,
    stride_kv_head,
    stride_table,
    WINDOW: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    VALUE_DIM: tl.constexpr,
):
    BLOCK_Q: tl.constexpr = BLOCK_M // PADDED_GROUP
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # a row's last queries see the most keys: they start first
    kv_head = tl.program_id(1)
    row, row_tile = _row_of(tile, cu_seqlens_ptr, num_rows, BLOCK_Q)
    row_start = tl.load(cu_seqlens_ptr + row)
    count = tl.load(cu_seqlens_ptr + row + 1) - row_start
    first_query = (tile - row_tile) * BLOCK_Q
    if (count < 2) | (first_query >= count):
        return
    num_before = tl.load(seq_lens_ptr + row) - count
    first_position = num_before + first_query
    last_position = tl.minimum(first_position + BLOCK_Q, num_before + count) - 1

    index = tl.arange(0, BLOCK_M)
    query = tl.minimum(first_position + index // PADDED_GROUP, last_position)  # padding repeats the last query and head
    head = kv_head * GROUP + tl.minimum(index % PADDED_GROUP, GROUP - 1)
    token = (row_start + query - num_before).to(tl.int64)
    dim = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + (token * stride_q + head * stride_q_head)[:, None] + dim[None, :])  # [BLOCK_M, HEAD_DIM]

    best = tl.full([BLOCK_M], -1e30, tl.float32)  # finite, since a query may see nothing of its first tiles
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, VALUE_DIM], tl.float32)
    slot = row
    if slots_ptr is not None:
        slot = tl.load(slots_ptr + row)
    table = tables_ptr + slot * stride_table
    key_ptr += kv_head * stride_kv_head
    value_ptr += kv_head * stride_kv_head
    if WINDOW:
        first = tl.maximum(first_position - WINDOW + 1, 0)
    else:
        first = (first_position + 1) // BLOCK_N * BLOCK_N  # all queries see all keys before this
        best, total, acc = _attend(
            best, total, acc, q, query, 0, first, last_position, key_ptr, value_ptr, table, scale,
            stride_block, stride_slot, False, WINDOW, BLOCK_SIZE, HEAD_DIM, BLOCK_N, VALUE_DIM,
        )  # fmt: skip
    best, total, acc = _attend(
        best, total, acc, q, query, first, last_position + 1, last_position, key_ptr, value_ptr, table, scale,
        stride_block, stride_slot, True, WINDOW, BLOCK_SIZE, HEAD_DIM, BLOCK_N, VALUE_DIM,
    )  # fmt: skip
    acc = acc / total[:, None]
    is_query = (first_position + index // PADDED_GROUP <= last_position) & (index % PADDED_GROUP < GROUP)
    at = out_ptr + (token * stride_out + head * stride_out_head)[:, None]
    at += tl.program_id(2) * VALUE_DIM + tl.arange(0, VALUE_DIM)[None, :]
    tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=is_query[:, None])
