"""`TritonExperts`: `reference.moe_experts` on CUDA. The gated products of all experts are one launch, those back to the stream another.

One row: a program takes a few features over the whole of K, and reads what the row's experts have of them. Up to 16 rows: a program
takes features of one expert, finds the tokens that chose it, and ends at once if none did; so each chosen expert is read once. More
rows: the pairs of token and expert are sorted by expert first. Nothing is added up by atomics: the weighted outputs of a token's
experts are left as partial sums for the `add_norm` that follows.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.gpu.activations import activate
from inference_server.kernels.gpu.expert_blocks import expert_blocks
from inference_server.kernels.gpu.few_rows import padded_rows
from inference_server.kernels.gpu.launch import LaunchConfig, overlaps_launches, tuning
from inference_server.kernels.ops import Activation

MAX_FEW_ROWS = 16  # in Qwen3, 32 rows choose seven eighths of the experts, so that looking for those saves little reading
MAX_BLOCK = 128  # pairs of a tile


@dataclass(frozen=True, slots=True)
class TritonExperts:
    """An `Experts`. gate_up [experts, 2 * size, hidden_size], gate first; down [experts, hidden_size, size]; both contiguous."""

    gate_up: Tensor
    down: Tensor
    activation: Activation

    def __call__(self, x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        tokens = len(x)
        if tokens == 1:
            return self._one_row(x, expert_ids, weights)
        num_experts, hidden_size, size = self.down.shape
        top_k = expert_ids.shape[1]
        sorted_from = tokens > MAX_FEW_ROWS
        block_m = max(16, min(MAX_BLOCK, triton.next_power_of_2(2 * tokens * top_k // num_experts))) if sorted_from else padded_rows(tokens)
        places = expert_blocks(expert_ids, num_experts, block_m) if sorted_from else None
        inner = torch.empty(tokens * top_k, size, dtype=x.dtype, device=x.device)
        out = torch.empty(top_k, tokens, hidden_size, dtype=x.dtype if sorted_from else torch.float32, device=x.device)
        for source, weight, target, gated in ((x, self.gate_up, inner, True), (inner, self.down, out, False)):
            n, k = target.shape[-1], source.shape[-1]
            config = self._tuning(f"{'sorted ' if places else ''}{block_m}", n, k, gated)
            overlap = overlaps_launches(x.device)
            _experts_kernel[(triton.cdiv(n, config.rows), num_experts if places is None else len(places.experts))](
                source,
                weight,
                expert_ids,
                weights,
                places.experts if places else None,
                places.pairs if places else None,
                target,
                tokens,
                n,
                K=k,
                EVEN_K=k % config.block_k == 0,
                TOP_K=top_k,
                CHOICES=triton.next_power_of_2(top_k),
                SORTED=places is not None,
                GATED=gated,
                ACTIVATION=self.activation,
                ROWS=config.rows,
                BLOCK_M=block_m,
                BLOCK_K=config.block_k,
                WIDE=block_m == MAX_BLOCK,
                OVERLAP=overlap,
                num_warps=config.num_warps,
                num_stages=config.num_stages,
                launch_pdl=overlap,
            )
        return out

    def _one_row(self, x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        _, hidden_size, size = self.down.shape
        top_k, overlap = expert_ids.shape[1], overlaps_launches(x.device)
        inner = torch.empty(top_k, size, dtype=x.dtype, device=x.device)
        out = torch.empty_like(x)
        config = self._tuning("1", size, hidden_size, gated=True)
        _one_row_gate_up_kernel[(triton.cdiv(size, config.rows), top_k)](
            x,
            self.gate_up,
            expert_ids,
            inner,
            size,
            K=hidden_size,
            ROWS=config.rows,
            BLOCK_K=config.block_k,
            ACTIVATION=self.activation,
            OVERLAP=overlap,
            num_warps=config.num_warps,
            launch_pdl=overlap,
        )
        config = self._tuning("1", hidden_size, size, gated=False)
        _one_row_down_kernel[(triton.cdiv(hidden_size, config.rows),)](
            inner,
            self.down,
            expert_ids,
            weights,
            out,
            hidden_size,
            K=size,
            TOP_K=top_k,
            ROWS=config.rows,
            BLOCK_K=config.block_k,
            OVERLAP=overlap,
            num_warps=config.num_warps,
            launch_pdl=overlap,
        )
        return out

    def _tuning(self, rows: str, n: int, k: int, gated: bool) -> LaunchConfig:
        default = default_config(rows, k, gated, self.down.element_size())
        name = f"experts {rows} rows{' gated' if gated else ''}"
        return (tuning(name, n, k, self.down.device, default) if self.down.element_size() == 2 else None) or default


def default_config(rows: str, k: int, gated: bool, itemsize: int) -> LaunchConfig:
    """rows: "1"; "sorted" and the size of the blocks; or the padded number of a few rows. itemsize: of a weight."""
    if rows == "1":
        return LaunchConfig(rows=2 if gated else 1, block_k=min(1024, triton.next_power_of_2(k)), num_warps=4)
    block_k = min(128 // itemsize if rows.startswith("sorted") else 128, max(16, triton.next_power_of_2(k)))
    if rows.startswith("sorted"):
        return LaunchConfig(rows=64 if gated else 128, block_k=block_k, num_warps=8, num_stages=3)
    return LaunchConfig(rows=32, block_k=block_k, num_warps=4, num_stages=4)


@triton.jit
def _one_row_gate_up_kernel(
    x,
    weight,
    expert_ids,
    inner,
    n,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """inner [top_k, n]. Grid: features, choices."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    choice = tl.program_id(1)
    expert = tl.load(expert_ids + choice).to(tl.int64)
    features = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    valid = features < n
    gates = tl.zeros((ROWS, BLOCK_K), tl.float32)
    ups = tl.zeros((ROWS, BLOCK_K), tl.float32)
    for k in tl.static_range(0, K, BLOCK_K):
        columns = k + tl.arange(0, BLOCK_K)
        inside = valid[:, None] & (columns < K)[None, :]
        at = weight + (expert * 2 * n + features)[:, None] * K + columns[None, :]
        gate = tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first")
        up = tl.load(at + n.to(tl.int64) * K, mask=inside, other=0.0, eviction_policy="evict_first")
        value = tl.load(x + columns, mask=columns < K, other=0.0).to(tl.float32)
        gates += gate.to(tl.float32) * value[None, :]
        ups += up.to(tl.float32) * value[None, :]
    result = activate(tl.sum(gates, 1), ACTIVATION) * tl.sum(ups, 1)
    tl.store(inner + choice * n + features, result.to(inner.dtype.element_ty), mask=valid)


@triton.jit
def _one_row_down_kernel(
    inner,
    weight,
    expert_ids,
    weights,
    out,
    n,
    K: tl.constexpr,
    TOP_K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """out [1, n], the weighted sum over the row's experts."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    features = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    valid = features < n
    sums = tl.zeros((ROWS, BLOCK_K), tl.float32)
    for choice in tl.static_range(TOP_K):
        expert = tl.load(expert_ids + choice).to(tl.int64)
        share = tl.load(weights + choice)
        for k in tl.static_range(0, K, BLOCK_K):
            columns = k + tl.arange(0, BLOCK_K)
            inside = valid[:, None] & (columns < K)[None, :]
            at = weight + (expert * n + features)[:, None] * K + columns[None, :]
            tile = tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
            value = tl.load(inner + choice * K + columns, mask=columns < K, other=0.0).to(tl.float32) * share
            sums += tile * value[None, :]
    tl.store(out + features, tl.sum(sums, 1).to(out.dtype.element_ty), mask=valid)


@triton.jit
def _experts_kernel(
    x,
    weight,
    expert_ids,
    weights,
    block_experts,
    block_pairs,
    out,
    tokens,
    n,
    K: tl.constexpr,
    EVEN_K: tl.constexpr,
    TOP_K: tl.constexpr,
    CHOICES: tl.constexpr,
    SORTED: tl.constexpr,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WIDE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid: features; blocks of sorted pairs or experts. A pair is token * TOP_K + choice.

    Gated: x [tokens, K], out [pairs, n]; the weight rows of a tile are a feature's gate, its up, the next one's gate. Else x [pairs, K],
    out [TOP_K, tokens, n], times the weight of the pair. WIDE: x is the left operand, else the weight, so that few pairs pad little.
    """
    matrices: tl.constexpr = 2 if GATED else 1
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    if SORTED:
        expert = tl.load(block_experts + tl.program_id(1)).to(tl.int64)
        if expert < 0:
            return
        pairs = tl.load(block_pairs + tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M))
        taken = pairs >= 0
    else:
        expert = tl.program_id(1).to(tl.int64)
        token = tl.arange(0, BLOCK_M)
        choice = tl.arange(0, CHOICES)
        known = (token < tokens)[:, None] & (choice < TOP_K)[None, :]
        ids = tl.load(expert_ids + token[:, None] * TOP_K + choice[None, :], mask=known, other=-1)
        match = (ids == expert).to(tl.int32)
        taken = tl.sum(match, 1) > 0
        if tl.sum(taken.to(tl.int32)) == 0:
            return
        pairs = token * TOP_K + tl.sum(match * choice[None, :], 1)
    tile_row = tl.arange(0, matrices * ROWS)
    feature = tl.program_id(0) * ROWS + tile_row // matrices
    chunk = tl.arange(0, BLOCK_K)
    x_row = (pairs // TOP_K if GATED else pairs).to(tl.int64)
    x_at = x + x_row[None, :] * K + chunk[:, None]
    weight_at = weight + ((expert * matrices + tile_row % matrices) * n + feature)[:, None] * K + chunk[None, :]
    sums = tl.zeros((BLOCK_M, matrices * ROWS) if WIDE else (matrices * ROWS, BLOCK_M), tl.float32)
    for k in range(0, K, BLOCK_K):
        inside = (feature < n)[:, None]
        there = taken[None, :]
        if not EVEN_K:
            inside = inside & (k + chunk < K)[None, :]
            there = there & (k + chunk < K)[:, None]
        rows = tl.load(x_at + k, mask=there, other=0.0)
        part = tl.load(weight_at + k, mask=inside, other=0.0)
        if WIDE:
            sums = tl.dot(tl.trans(rows), tl.trans(part), sums, input_precision="ieee")
        else:
            sums = tl.dot(part, rows, sums, input_precision="ieee")
    if not WIDE:
        sums = tl.trans(sums)
    row = pairs.to(tl.int64)
    if GATED:
        gate, up = tl.split(tl.reshape(sums, (BLOCK_M, ROWS, 2)))
        sums = activate(gate, ACTIVATION) * up
    else:
        sums *= tl.load(weights + pairs, mask=taken, other=0.0)[:, None]
        row = (pairs % TOP_K).to(tl.int64) * tokens + pairs // TOP_K
    features = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tl.store(out + row[:, None] * n + features[None, :], sums.to(out.dtype.element_ty), mask=taken[:, None] & (features < n)[None, :])
