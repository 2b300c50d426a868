"""Sparse experts in Triton: the chosen (token, expert) pairs sorted by expert, and a matrix product whose tiles never mix experts.

Nothing is read back and no size depends on what the router chose, so it can be captured: which expert a tile belongs to is looked up on
the device (as in MegaBlocks, arXiv:2211.15841, without padding in memory). The reference is `reference.moe_experts`.
Importing this needs Triton.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.ops import Activation
from inference_server.kernels.reference import gated


@dataclass(frozen=True, slots=True)
class _Tiles:
    """block_m: pairs of a tile. block_n: output features of a program. block_k: inputs at a time."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int

    @classmethod
    def choose(cls, num_pairs: int, num_experts: int, itemsize: int) -> "_Tiles":
        """Tiles of few pairs while most experts have few: then the weights' bytes are the cost, whatever the tile."""
        if itemsize > 2:
            return cls(16, 32, 32, 4, 2)
        if num_pairs <= 24 * num_experts:
            return cls(16, 64, 128, 4, 4)
        return cls(64, 128, 64, 4, 3) if num_pairs <= 96 * num_experts else cls(128, 128, 64, 8, 3)


def moe_experts(x: Tensor, gate_up: Tensor, down: Tensor, expert_ids: Tensor, weights: Tensor, activation: Activation) -> Tensor:
    """As `reference.moe_experts`."""
    tokens, top_k = expert_ids.shape
    num_experts = len(gate_up)
    flat_ids = expert_ids.flatten()
    order = flat_ids.argsort(stable=True)  # pairs by expert
    counts = torch.zeros(num_experts, dtype=torch.int32, device=x.device)
    counts.scatter_add_(0, flat_ids, torch.ones_like(flat_ids, dtype=torch.int32))
    starts = torch.zeros(num_experts + 1, dtype=torch.int32, device=x.device)
    torch.cumsum(counts, 0, dtype=torch.int32, out=starts[1:])
    tiles = _Tiles.choose(len(flat_ids), num_experts, gate_up.element_size())
    wide = x.to(gate_up.dtype)
    hidden = gated(_grouped_product(wide, order // top_k, gate_up, starts, tiles), activation)
    by_expert = _grouped_product(hidden, None, down, starts, tiles)
    by_pair = torch.empty_like(by_expert)
    by_pair[order] = by_expert
    return (by_pair.view(tokens, top_k, -1).float() * weights.unsqueeze(2)).sum(1).to(x.dtype)


def _grouped_product(x: Tensor, rows: Tensor | None, weight: Tensor, starts: Tensor, tiles: _Tiles) -> Tensor:
    """For pair i of expert e: weight[e] [N, K] times x[rows[i]], or x[i] without rows. starts: int32 [experts + 1], each expert's pairs."""
    num_experts, n, k = weight.shape
    num_pairs = len(x) if rows is None else len(rows)
    out = torch.empty(num_pairs, n, dtype=x.dtype, device=x.device)
    max_tiles = num_pairs // tiles.block_m + min(num_experts, num_pairs)
    _grouped_kernel[(triton.cdiv(n, tiles.block_n), max_tiles)](
        x,
        rows,
        weight,
        starts,
        out,
        num_experts,
        n,
        k,
        BLOCK_M=tiles.block_m,
        BLOCK_N=tiles.block_n,
        BLOCK_K=tiles.block_k,
        EXPERTS=triton.next_power_of_2(num_experts),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    return out


@triton.jit
def _expert_of(tile, starts_ptr, num_experts, BLOCK_M: tl.constexpr, EXPERTS: tl.constexpr):
    """The expert of a tile, its first pair and the end of the expert's pairs: none, 0 and 0 behind the last tile."""
    index = tl.arange(0, EXPERTS)
    starts = tl.load(starts_ptr + index, mask=index < num_experts, other=0)
    stops = tl.load(starts_ptr + index + 1, mask=index < num_experts, other=0)
    num_tiles = tl.cdiv(stops - starts, BLOCK_M)
    expert = tl.sum((tl.cumsum(num_tiles, 0) <= tile).to(tl.int32))
    is_own = index == expert
    tile_of_expert = tile - tl.sum(tl.where(index < expert, num_tiles, 0))
    return expert, tl.sum(tl.where(is_own, starts, 0)) + tile_of_expert * BLOCK_M, tl.sum(tl.where(is_own, stops, 0))


@triton.jit(do_not_specialize=["num_experts"])
def _grouped_kernel(
    x_ptr,
    rows_ptr,
    weight_ptr,
    starts_ptr,
    out_ptr,
    num_experts,
    n,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    expert, first, stop = _expert_of(tl.program_id(1), starts_ptr, num_experts, BLOCK_M, EXPERTS)
    if first >= stop:
        return
    pair = first + tl.arange(0, BLOCK_M)
    row = tl.minimum(pair, stop - 1)
    if rows_ptr is not None:
        row = tl.load(rows_ptr + row)
    feature = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = tl.minimum(feature, n - 1)
    weight = weight_ptr + (expert * n + inside).to(tl.int64) * k
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        at = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + row.to(tl.int64)[:, None] * k + at[None, :], mask=at[None, :] < k, other=0.0)  # [BLOCK_M, BLOCK_K]
        w = tl.load(weight[None, :] + at[:, None], mask=at[:, None] < k, other=0.0)  # [BLOCK_K, BLOCK_N]
        acc = tl.dot(x, w, acc, input_precision="tf32x3")
    where = out_ptr + pair.to(tl.int64)[:, None] * n + feature[None, :]
    tl.store(where, acc.to(out_ptr.dtype.element_ty), mask=(pair < stop)[:, None] & (feature < n)[None, :])
