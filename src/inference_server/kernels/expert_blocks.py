"""The pairs of (token, choice) that a step has, sorted by expert into blocks of one expert each, so that a tile of a matrix product
serves one expert. Two launches, whose sizes depend on the number of pairs alone; the order within an expert is that of the pairs.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_SCAN = 2048  # pairs at a time


class ExpertBlocks(NamedTuple):
    """experts: int32 [blocks], whose block it is; -1 behind the last. pairs: int32 [blocks * size], token * top_k + choice, or -1."""

    experts: Tensor
    pairs: Tensor


def expert_blocks(expert_ids: Tensor, num_experts: int, size: int) -> ExpertBlocks:
    """expert_ids: int32 [tokens, top_k]. As many blocks as there can be: each expert may leave one unfilled."""
    num_pairs, device = expert_ids.numel(), expert_ids.device
    num_blocks = min(num_pairs, triton.cdiv(num_pairs, size) + num_experts)
    counts = torch.empty(num_experts, dtype=torch.int32, device=device)
    experts = torch.empty(num_blocks, dtype=torch.int32, device=device)
    pairs = torch.empty(num_blocks * size, dtype=torch.int32, device=device)
    scan = min(_SCAN, max(16, triton.next_power_of_2(num_pairs)))
    _count_kernel[(num_experts,)](expert_ids, counts, num_pairs, scan, num_warps=8)
    _place_kernel[(num_experts,)](
        expert_ids, counts, experts, pairs, num_pairs, num_experts, num_blocks, size, scan, triton.next_power_of_2(num_experts), num_warps=8
    )
    return ExpertBlocks(experts, pairs)


@triton.jit
def _count_kernel(expert_ids, counts, num_pairs, SCAN: tl.constexpr):
    expert = tl.program_id(0)
    mine = tl.zeros((SCAN,), tl.int32)
    for first in range(0, num_pairs, SCAN):
        pair = first + tl.arange(0, SCAN)
        mine += (tl.load(expert_ids + pair, mask=pair < num_pairs, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(mine))


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
    EXPERTS: tl.constexpr,
):
    """One program an expert: its place is behind the blocks of the experts before it."""
    expert = tl.program_id(0)
    other = tl.arange(0, EXPERTS)
    count = tl.load(counts + other, mask=other < num_experts, other=0)
    blocks = (count + SIZE - 1) // SIZE
    first_block = tl.sum(tl.where(other < expert, blocks, 0))
    own_blocks = tl.sum(tl.where(other == expert, blocks, 0))
    for block in range(first_block, first_block + own_blocks):
        tl.store(experts + block, expert)
    if expert == num_experts - 1:
        for block in range(first_block + own_blocks, num_blocks):
            tl.store(experts + block, -1)
    at = first_block * SIZE
    for first in range(0, num_pairs, SCAN):
        pair = first + tl.arange(0, SCAN)
        mine = (tl.load(expert_ids + pair, mask=pair < num_pairs, other=-1) == expert).to(tl.int32)
        tl.store(pairs + at + tl.cumsum(mine) - 1, pair, mask=mine > 0)
        at += tl.sum(mine)
    rest = tl.arange(0, SIZE)
    tl.store(pairs + at + rest, -1, mask=at + rest < (first_block + own_blocks) * SIZE)
