"""Paged decode attention in Triton: one query a row, the row's keys spread over several programs (split-K).

A program takes one KV head with all query heads that share it, so every key and value is loaded once. How many programs a row
gets is fixed on the host from upper bounds; how its keys are dealt to them is read on the device, so a captured launch serves any
context. Each part keeps the logarithm of its softmax's sum, as in Flash-Decoding, and a second kernel weighs the parts. The reference is
`reference.paged_attention`. Importing this needs Triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from inference_server.kernels.gpu.attention_tuning import MAX_SPLITS, DecodeLaunch, decode_launch
from inference_server.kernels.gpu.launch import overlaps_launches

LOG2_E = 1.4426950408889634
MIN_DOT_ROWS = 16  # the smallest tile of queries that the tensor cores take
FEW_SPLITS = 16  # the reduction is compiled twice, for at most so many parts and for any number
REDUCE_DIMS = 64  # dimensions of a head that one program of the reduction handles
MANY_HEADS = 64  # of all rows: from here on a program of the reduction takes 4 * REDUCE_DIMS, since most only cost their start


def decode_attention(
    q: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    block_tables: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    *,
    num_rows: int,
    max_seq_len: int,
    scale: float,
    window: int | None,
    slots: Tensor | None = None,
    launch: DecodeLaunch | None = None,
) -> None:
    """Write the attention of those of the first num_rows rows that have exactly one token; other tokens of `out` stay untouched.

    Arguments are those of `reference.paged_attention`; out is like q. max_seq_len: an upper bound of seq_lens, for the launch size
    alone. slots: as in `StepRows`. head_dim is a power of two from 16 up; its elements, and nothing
    else, must be contiguous in q, key and value.
    """
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = key.shape[1:3]
    group = num_heads // num_kv_heads
    max_keys = min(max_seq_len, window or max_seq_len)
    launch = launch or decode_launch(head_dim, key.element_size(), q.device)
    num_splits, min_keys = launch.splits(num_rows * num_kv_heads, max_keys)
    rows_padded = max(MIN_DOT_ROWS, triton.next_power_of_2(group))
    parts = torch.empty((num_rows, num_heads, num_splits, head_dim), dtype=torch.float32, device=q.device)
    part_lse = torch.empty((num_rows, num_heads, num_splits), dtype=torch.float32, device=q.device)
    early = overlaps_launches(q.device)
    overlapping = {"launch_pdl": True} if early else {}
    constants = {"WINDOW": window or 0, "BLOCK_N": launch.block_n, "HEAD_DIM": head_dim, "EARLY": early}
    _decode_kernel[(num_splits, num_kv_heads, num_rows)](
        q,
        key,
        value,
        out,
        parts,
        part_lse,
        block_tables,
        cu_seqlens_q,
        seq_lens,
        slots,
        scale * LOG2_E,
        min_keys,
        *q.stride()[:2],
        *out.stride()[:2],
        *key.stride()[:3],
        block_tables.stride(0),
        BLOCK_SIZE=block_size,
        GROUP=group,
        ROWS=rows_padded,
        **constants,
        **overlapping,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    if num_splits > 1:
        few = num_splits <= FEW_SPLITS
        dims = min(head_dim, REDUCE_DIMS * 4 if few and num_rows * num_heads >= MANY_HEADS else REDUCE_DIMS)
        _reduce_kernel[(num_rows, num_heads, head_dim // dims)](
            parts,
            part_lse,
            out,
            cu_seqlens_q,
            seq_lens,
            num_splits,
            min_keys,
            *out.stride()[:2],
            SPLITS=FEW_SPLITS if few else MAX_SPLITS,
            DIMS=dims,
            **constants,
            **overlapping,
            num_warps=4,
        )


@triton.jit
def parts_of_row(length, num_splits, min_keys, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """The first key a row sees, the keys of each of its parts (whole tiles), and how many parts that makes."""
    oldest = 0
    if WINDOW:
        oldest = tl.maximum(length - WINDOW, 0)
    keys = length - oldest
    share = tl.maximum(tl.cdiv(keys, num_splits), min_keys)
    share = tl.cdiv(share, BLOCK_N) * BLOCK_N
    return oldest, share, tl.cdiv(keys, share)


@triton.jit(do_not_specialize=["min_keys", "stride_table"])
def _decode_kernel(
    q_ptr,
    key_ptr,
    value_ptr,
    out_ptr,
    parts_ptr,
    lse_ptr,
    tables_ptr,
    cu_seqlens_ptr,
    seq_lens_ptr,
    slots_ptr,
    scale,
    min_keys,
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
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        gdc_launch_dependents()
    split, kv_head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token, next_token, length = tl.load(cu_seqlens_ptr + row), tl.load(cu_seqlens_ptr + row + 1), tl.load(seq_lens_ptr + row)
    slot = row
    if slots_ptr is not None:
        slot = tl.load(slots_ptr + row)
    max_splits = tl.num_programs(0)
    oldest, share, num_splits = parts_of_row(length, max_splits, min_keys, WINDOW, BLOCK_N)
    first = oldest + split * share
    stop = tl.minimum(first + share, length)
    table = tables_ptr + slot * stride_table
    position = first + tl.arange(0, BLOCK_N)
    inside = tl.maximum(tl.minimum(position, stop - 1), 0)  # past the end the last key is read again, so free blocks never are
    block = tl.load(table + inside // BLOCK_SIZE)
    if EARLY:
        gdc_wait()  # the kernel before writes queries, keys and values; what was read until here belongs to the step
    if (next_token - token != 1) | (split >= num_splits):
        return

    member = tl.arange(0, ROWS)
    head = kv_head * GROUP + tl.minimum(member, GROUP - 1)  # padding repeats the last head
    dim = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + token.to(tl.int64) * stride_q + head[:, None] * stride_q_head + dim[None, :])  # [ROWS, HEAD_DIM]
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    for _ in range(first, stop, BLOCK_N):
        where = block.to(tl.int64) * stride_block + (inside % BLOCK_SIZE) * stride_slot + kv_head * stride_kv_head
        inside = tl.minimum(position + BLOCK_N, stop - 1)
        block = tl.load(table + inside // BLOCK_SIZE)  # of the next tile, so that its keys need not wait for their address
        k = tl.load(key_ptr + where[:, None] + dim[None, :])  # [BLOCK_N, HEAD_DIM]
        v = tl.load(value_ptr + where[:, None] + dim[None, :])
        scores = tl.dot(q, tl.trans(k), input_precision="tf32x3") * scale
        scores = tl.where(position[None, :] < stop, scores, float("-inf"))
        top = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - top[:, None])
        fade = tl.exp2(best - top)
        total = total * fade + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * fade[:, None], input_precision="tf32x3")
        best = top
        position += BLOCK_N
    acc = acc / total[:, None]

    is_head = member[:, None] < GROUP
    if num_splits == 1:
        at = out_ptr + token.to(tl.int64) * stride_out + head[:, None] * stride_out_head + dim[None, :]
        tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=is_head)
    else:
        num_heads = tl.num_programs(1) * GROUP
        part = (row * num_heads + head).to(tl.int64) * max_splits + split
        tl.store(parts_ptr + part[:, None] * HEAD_DIM + dim[None, :], acc, mask=is_head)
        tl.store(lse_ptr + part, best + tl.log2(total), mask=member < GROUP)


@triton.jit(do_not_specialize=["max_splits", "min_keys"])
def _reduce_kernel(
    parts_ptr,
    lse_ptr,
    out_ptr,
    cu_seqlens_ptr,
    seq_lens_ptr,
    max_splits,
    min_keys,
    stride_out,
    stride_out_head,
    WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    DIMS: tl.constexpr,
    EARLY: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    token, next_token, length = tl.load(cu_seqlens_ptr + row), tl.load(cu_seqlens_ptr + row + 1), tl.load(seq_lens_ptr + row)
    _, _, num_splits = parts_of_row(length, max_splits, min_keys, WINDOW, BLOCK_N)
    if EARLY:
        gdc_wait()  # metadata was there before; what follows is written by the other kernel
        gdc_launch_dependents()  # not earlier: the weights that these load would get in the way of keys and values
    if (next_token - token != 1) | (num_splits == 1):
        return
    split = tl.arange(0, SPLITS)
    dim = tl.program_id(2) * DIMS + tl.arange(0, DIMS)
    part = (row * tl.num_programs(1) + head).to(tl.int64) * max_splits + split
    lse = tl.load(lse_ptr + part, mask=split < num_splits, other=float("-inf"))
    weights = tl.exp2(lse - tl.max(lse, 0))
    parts = tl.load(parts_ptr + part[:, None] * HEAD_DIM + dim[None, :], mask=split[:, None] < num_splits, other=0.0)  # [SPLITS, DIMS]
    mean = tl.sum(parts * weights[:, None], 0) / tl.sum(weights, 0)
    tl.store(out_ptr + token.to(tl.int64) * stride_out + head * stride_out_head + dim, mean.to(out_ptr.dtype.element_ty))
