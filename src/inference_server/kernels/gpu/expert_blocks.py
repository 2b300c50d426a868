"""The pairs of (token, choice) that a step has, sorted by expert into blocks of one expert each, so that a tile of a matrix product
serves one expert. One launch for a decode step, two for a prompt, whose sizes depend on the number of pairs alone; the order within an
expert is that of the pairs.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.gpu.launch import overlaps_launches

_SCAN = 8192  # pairs that a program looks through


class ExpertBlocks(NamedTuple):
    """experts: int32 [blocks], each block's expert; -1 behind the last. pairs: int32 [blocks * size], token * top_k + choice, or -1."""

    experts: Tensor
    pairs: Tensor


def expert_blocks(expert_ids: Tensor, num_experts: int, size: int, scan: int = _SCAN) -> ExpertBlocks:
    """expert_ids: int32 [tokens, top_k]. As many blocks as there can be: each expert may leave one unfilled.

    scan: a power of two, how many pairs a program looks through at most.
    """
    num_pairs, device = expert_ids.numel(), expert_ids.device
    num_blocks = min(num_pairs, triton.cdiv(num_pairs, size) + num_experts)
    experts = torch.empty(num_blocks, dtype=torch.int32, device=device)
    pairs = torch.empty(num_blocks * size, dtype=torch.int32, device=device)
    scan = min(scan, max(16, triton.next_power_of_2(num_pairs)))
    num_scans, bins = triton.cdiv(num_pairs, scan), triton.next_power_of_2(num_experts)
    overlap = overlaps_launches(device)
    counts = torch.empty(num_scans, bins, dtype=torch.int32, device=device) if num_scans > 1 else None
    if counts is not None:
        _count_kernel[(num_scans,)](expert_ids, counts, num_pairs, scan, bins, overlap, num_warps=8, launch_pdl=overlap)
    _place_kernel[(num_experts, num_scans)](
        expert_ids,
        counts,
        experts,
        pairs,
        num_pairs,
        num_experts,
        num_blocks,
        SIZE=size,
        SCAN=scan,
        SCANS=triton.next_power_of_2(num_scans),
        BINS=bins,
        OVERLAP=overlap,
        num_warps=8 if scan >= 1024 else 4,
        launch_pdl=overlap,
    )
    return ExpertBlocks(experts, pairs)


@triton.jit
def _count_kernel(expert_ids, counts, num_pairs, SCAN: tl.constexpr, BINS: tl.constexpr, OVERLAP: tl.constexpr):
    """counts: [scans, BINS], the pairs of each expert in each scan."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    pair = tl.program_id(0) * SCAN + tl.arange(0, SCAN)
    ids = tl.load(expert_ids + pair, mask=pair < num_pairs, other=0)
    tl.store(counts + tl.program_id(0) * BINS + tl.arange(0, BINS), tl.histogram(ids, BINS, mask=pair < num_pairs))


@triton.jit
def _place_kernel(
    expert_ids,
    counts,
    experts,
    pairs,
    num_pairs,
    num_experts,
    num_blocks,
    SIZE: tl.constexpr,
    SCAN: tl.constexpr,
    SCANS: tl.constexpr,
    BINS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid: experts, scans. An expert's blocks follow those of the experts before it; in them, the pairs of a scan follow those of scans
    before it.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    expert, scan = tl.program_id(0), tl.program_id(1)
    bin = tl.arange(0, BINS)
    pair = scan * SCAN + tl.arange(0, SCAN)
    ids = tl.load(expert_ids + pair, mask=pair < num_pairs, other=-1)
    mine = (ids == expert).to(tl.int32)
    if counts is None:
        before = 0
        count = tl.histogram(tl.maximum(ids, 0), BINS, mask=pair < num_pairs)
    else:
        other_scan = tl.arange(0, SCANS)[:, None]
        every = tl.load(counts + other_scan * BINS + bin[None, :], mask=other_scan < tl.num_programs(1), other=0)
        before = tl.sum(tl.where((other_scan < scan) & (bin == expert)[None, :], every, 0))
        count = tl.sum(every, 0)
    blocks = (count + SIZE - 1) // SIZE
    first_block = tl.sum(tl.where(bin < expert, blocks, 0))
    stop_block = first_block + tl.sum(tl.where(bin == expert, blocks, 0))
    at = first_block * SIZE + before
    tl.store(pairs + at + tl.cumsum(mine) - 1, pair, mask=mine > 0)
    if scan == tl.num_programs(1) - 1:
        rest = at + tl.sum(mine) + tl.arange(0, SIZE)
        tl.store(pairs + rest, -1, mask=rest < stop_block * SIZE)
        for block in range(first_block, stop_block):
            tl.store(experts + block, expert)
        if expert == num_experts - 1:
            for block in range(stop_block, num_blocks):
                tl.store(experts + block, -1)
