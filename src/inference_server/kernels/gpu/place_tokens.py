"""What every token of a step needs, from the few numbers that the host sends for each row, and where its sampled ids go: one launch at
the head of a step, one at its end.

A few programs share the tokens of one row, and as many those behind the last row. The references have the same names. Importing this
needs Triton.
"""

import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.gpu.launch import overlaps_launches
from inference_server.kernels.step_rows import StepRows, TokenPlaces

_BLOCK = 256  # tokens at a time
_MAX_SHARERS = 16  # programs of a row


def place_tokens(rows: StepRows, known_ids: Tensor, newest_ids: Tensor, block_tables: Tensor, block_size: int, out: TokenPlaces) -> None:
    """As `reference.place_tokens`."""
    num_rows = len(rows.seq_lens)
    _place_kernel[(num_rows + 1, min(_MAX_SHARERS, triton.cdiv(len(known_ids) - num_rows + 1, _BLOCK)))](
        rows.cu_seqlens_q,
        rows.seq_lens,
        rows.slots,
        known_ids,
        newest_ids,
        block_tables,
        *out,
        num_rows,
        len(known_ids),
        *block_tables.stride()[:2],
        out.slot_mapping.stride(0),
        GROUPS=len(block_tables),
        BLOCK_SIZE=block_size,
        BLOCK=_BLOCK,
        num_warps=4,
    )


def keep_tokens(ids: Tensor, slots: Tensor, newest_ids: Tensor, out: Tensor) -> None:
    """As `reference.keep_tokens`."""
    rows, overlap = len(ids), overlaps_launches(ids.device)
    _keep_kernel[(triton.cdiv(rows, _BLOCK),)](ids, slots, newest_ids, out, rows, _BLOCK, overlap, num_warps=1, launch_pdl=overlap)


@triton.jit(do_not_specialize=["rows"])
def _keep_kernel(ids_ptr, slots_ptr, newest_ids_ptr, out_ptr, rows, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    slot = tl.load(slots_ptr + row, mask=inside, other=0)  # sent with the step, so before the kernel that is waited for
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    ids = tl.load(ids_ptr + row, mask=inside, other=0)
    tl.store(out_ptr + row, ids, mask=inside)
    tl.store(newest_ids_ptr + slot, ids, mask=inside)


@triton.jit(do_not_specialize=["num_rows", "num_tokens", "stride_group", "stride_table", "stride_mapping"])
def _place_kernel(
    cu_seqlens_ptr,
    seq_lens_ptr,
    slots_ptr,
    known_ids_ptr,
    newest_ids_ptr,
    tables_ptr,
    input_ids_ptr,
    positions_ptr,
    mapping_ptr,
    num_rows,
    num_tokens,
    stride_group,
    stride_table,
    stride_mapping,
    GROUPS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    first = tl.load(cu_seqlens_ptr + row)
    is_row = row < num_rows
    stop = tl.load(cu_seqlens_ptr + row + 1, mask=is_row, other=0)
    stop = tl.where(is_row, stop, num_tokens)
    slot = tl.load(slots_ptr + row, mask=is_row, other=0).to(tl.int64)
    num_before = tl.load(seq_lens_ptr + row, mask=is_row, other=0) - (stop - first)
    newest = tl.load(newest_ids_ptr + slot)
    for start in range(first + tl.program_id(1) * BLOCK, stop, BLOCK * tl.num_programs(1)):
        token = start + tl.arange(0, BLOCK)
        inside = token < stop
        placed = inside & is_row
        known = tl.load(known_ids_ptr + token, mask=placed, other=0).to(tl.int64)
        position = tl.where(placed, num_before + token - first, 0)
        tl.store(input_ids_ptr + token, tl.where(known < 0, newest, known), mask=inside)
        tl.store(positions_ptr + token, position.to(tl.int64), mask=inside)
        for group in tl.static_range(GROUPS):
            table = tables_ptr + group * stride_group + slot * stride_table
            block = tl.load(table + position // BLOCK_SIZE, mask=placed, other=0).to(tl.int64)
            place = tl.where(placed, block * BLOCK_SIZE + position % BLOCK_SIZE, 0)
            tl.store(mapping_ptr + group * stride_mapping + token, place, mask=inside)
