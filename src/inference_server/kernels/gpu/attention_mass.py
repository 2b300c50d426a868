"""The attention mass of blocks in Triton: what rows of one token attend to, added up by block of the cache for `H2O`.

Its launches are separate from those of decode attention, so that it costs nothing where nobody asks for it; they read the keys once more,
and no values. As there, the grid is fixed on the host and lengths are read on the device, so a captured launch serves any context. The
reference is `MassAttention`. Importing this needs Triton.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.gpu.attention import TritonAttention
from inference_server.kernels.gpu.attention_tuning import MAX_SPLITS, decode_launch
from inference_server.kernels.gpu.decode_attention import LOG2_E, MIN_DOT_ROWS, parts_of_row
from inference_server.kernels.step_rows import StepRows

_CHUNKS = 64  # that one program of the second kernel adds up


@dataclass(frozen=True, slots=True)
class TritonMassAttention:
    """`attention`, and the mass that its rows of one token add to block_mass, fp32 [num_blocks] (see `reference.bind_attention`)."""

    attention: TritonAttention
    block_mass: Tensor

    def __call__(self, q: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if self.attention.rows.num_single:
            add_block_mass(q, key, self.attention.block_tables, self.attention.rows, scale, self.block_mass)
        return self.attention(q, key, value, scale)


def add_block_mass(q: Tensor, key: Tensor, block_tables: Tensor, rows: StepRows, scale: float, block_mass: Tensor) -> None:
    """Add the softmax probabilities of the rows' keys, summed over keys and heads, to their blocks. Rows of more tokens add nothing.

    q [tokens, num_heads, head_dim], key [num_blocks, block_size, num_kv_heads, head_dim], no window. Sums are atomic, so their last bits
    depend on their order.
    """
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = key.shape[1:3]
    num_rows, max_keys = rows.num_single, max(rows.lengths)
    launch = decode_launch(head_dim, key.element_size(), q.device)
    num_splits, min_keys = launch.splits(num_rows * num_kv_heads, max_keys)
    chunk = min(launch.block_n, block_size)
    max_chunks = triton.cdiv(max_keys, chunk)
    chunk_lse = torch.empty((num_rows, num_heads, max_chunks), dtype=torch.float32, device=q.device)
    part_lse = torch.empty((num_rows, num_heads, num_splits), dtype=torch.float32, device=q.device)
    group = num_heads // num_kv_heads
    constants = {"BLOCK_SIZE": block_size, "BLOCK_N": launch.block_n, "CHUNK": chunk}
    metadata = (block_tables, rows.cu_seqlens_q, rows.seq_lens, rows.slots)
    _chunk_kernel[(num_splits, num_kv_heads, num_rows)](
        q,
        key,
        chunk_lse,
        part_lse,
        *metadata,
        scale * LOG2_E,
        min_keys,
        max_chunks,
        *q.stride()[:2],
        *key.stride()[:3],
        block_tables.stride(0),
        GROUP=group,
        ROWS=max(MIN_DOT_ROWS, triton.next_power_of_2(group)),
        HEAD_DIM=head_dim,
        **constants,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    _mass_kernel[(num_rows, triton.cdiv(max_chunks, _CHUNKS))](
        chunk_lse,
        part_lse,
        block_mass,
        *metadata,
        min_keys,
        max_chunks,
        num_splits,
        block_tables.stride(0),
        NUM_HEADS=num_heads,
        SPLITS=MAX_SPLITS,
        CHUNKS=_CHUNKS,
        **constants,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["min_keys", "max_chunks", "stride_table"])
def _chunk_kernel(
    q_ptr,
    key_ptr,
    chunk_lse_ptr,
    part_lse_ptr,
    tables_ptr,
    cu_seqlens_ptr,
    seq_lens_ptr,
    slots_ptr,
    scale,
    min_keys,
    max_chunks,
    stride_q,
    stride_q_head,
    stride_block,
    stride_slot,
    stride_kv_head,
    stride_table,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The logarithms of the sums of exp2(score), by head, of every chunk of keys and of every part of a row."""
    split, kv_head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token, next_token, length = tl.load(cu_seqlens_ptr + row), tl.load(cu_seqlens_ptr + row + 1), tl.load(seq_lens_ptr + row)
    max_splits = tl.num_programs(0)
    _, share, num_splits = parts_of_row(length, max_splits, min_keys, 0, BLOCK_N)
    if (next_token - token != 1) | (split >= num_splits):
        return
    slot = row
    if slots_ptr is not None:
        slot = tl.load(slots_ptr + row)
    table = tables_ptr + slot * stride_table
    member, dim = tl.arange(0, ROWS), tl.arange(0, HEAD_DIM)
    head = kv_head * GROUP + tl.minimum(member, GROUP - 1)  # padding repeats the last head
    is_head = member < GROUP
    q = tl.load(q_ptr + token.to(tl.int64) * stride_q + head[:, None] * stride_q_head + dim[None, :])
    line = (row * tl.num_programs(1) * GROUP + head).to(tl.int64)  # of the results
    chunk = tl.arange(0, BLOCK_N // CHUNK)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    first = split * share
    stop = tl.minimum(first + share, length)
    for start in range(first, stop, BLOCK_N):
        position = start + tl.arange(0, BLOCK_N)
        inside = tl.minimum(position, stop - 1)  # past the end the last key is read again, so free blocks never are
        block = tl.load(table + inside // BLOCK_SIZE)
        where = block.to(tl.int64) * stride_block + (inside % BLOCK_SIZE) * stride_slot + kv_head * stride_kv_head
        k = tl.load(key_ptr + where[:, None] + dim[None, :])
        scores = tl.dot(q, tl.trans(k), input_precision="tf32x3") * scale
        scores = tl.where(position[None, :] < stop, scores, float("-inf"))
        top = tl.maximum(best, tl.max(scores, 1))
        weights = tl.reshape(tl.exp2(scores - top[:, None]), (ROWS, BLOCK_N // CHUNK, CHUNK))
        sums = tl.sum(weights, 2)
        at = chunk_lse_ptr + line[:, None] * max_chunks + start // CHUNK + chunk[None, :]
        tl.store(at, top[:, None] + tl.log2(tl.maximum(sums, 1e-38)), mask=is_head[:, None] & (start + chunk[None, :] * CHUNK < stop))
        total = total * tl.exp2(best - top) + tl.sum(sums, 1)
        best = top
    tl.store(part_lse_ptr + line * max_splits + split, best + tl.log2(total), mask=is_head)


@triton.jit(do_not_specialize=["min_keys", "max_chunks", "max_splits", "stride_table"])
def _mass_kernel(
    chunk_lse_ptr,
    part_lse_ptr,
    mass_ptr,
    tables_ptr,
    cu_seqlens_ptr,
    seq_lens_ptr,
    slots_ptr,
    min_keys,
    max_chunks,
    max_splits,
    stride_table,
    NUM_HEADS: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Every chunk's share of its row's sum, added to the chunk's block."""
    row = tl.program_id(0)
    token, next_token, length = tl.load(cu_seqlens_ptr + row), tl.load(cu_seqlens_ptr + row + 1), tl.load(seq_lens_ptr + row)
    chunk = tl.program_id(1) * CHUNKS + tl.arange(0, CHUNKS)
    used = chunk * CHUNK < length
    if (next_token - token != 1) | (tl.program_id(1) * CHUNKS * CHUNK >= length):
        return
    _, _, num_splits = parts_of_row(length, max_splits, min_keys, 0, BLOCK_N)
    split = tl.arange(0, SPLITS)
    mass = tl.zeros([CHUNKS], tl.float32)
    for head in range(NUM_HEADS):
        line = (row * NUM_HEADS + head).to(tl.int64)
        parts = tl.load(part_lse_ptr + line * max_splits + split, mask=split < num_splits, other=float("-inf"))
        top = tl.max(parts, 0)
        total = top + tl.log2(tl.sum(tl.exp2(parts - top), 0))
        mass += tl.exp2(tl.load(chunk_lse_ptr + line * max_chunks + chunk, mask=used, other=float("-inf")) - total)
    slot = row
    if slots_ptr is not None:
        slot = tl.load(slots_ptr + row)
    block = tl.load(tables_ptr + slot * stride_table + chunk * CHUNK // BLOCK_SIZE, mask=used, other=0)
    tl.atomic_add(mass_ptr + block, mass, mask=used)
