"""The operations in plain PyTorch: the `Ops` that every faster set is checked against, and that serve where there is no faster one.

Each is a function that says what it computes, in which shapes. How attention gathers what it reads is in `kernels.reference_attention`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from inference_server.kernels.composed import ComposedLinear, activate
from inference_server.kernels.ops import PLAIN, Activation, AddNorm, Attention, Epilogue, Experts, FusedLinear, KVSlots, Linear, TokenMap
from inference_server.kernels.quantize import QuantizedWeight
from inference_server.kernels.reference_attention import MassAttention, PagedAttention
from inference_server.kernels.step_rows import StepRows, TokenPlaces


@dataclass(frozen=True, slots=True)
class StockLinear:
    """torch's own linear layer; the weight is kept as it is."""

    weight: Tensor

    def __call__(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight).to(out_dtype or x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


@dataclass(frozen=True, slots=True)
class DequantizedLinear:
    """A linear layer of int8 weights. It multiplies by the numbers that they stand for; activations are not quantised."""

    weight: QuantizedWeight

    def __call__(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        dtype = self.weight.dtype
        fractions = self.weight.values.to(dtype) * 2**-7  # exact, and below 1: sums of whole values could be too large for float16
        return (F.linear(x.to(dtype), fractions) * (self.weight.scales * 2**7)).to(out_dtype or x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        return self.weight.rows(ids)


def product(weight: Tensor | QuantizedWeight) -> Linear:
    """The plain product by the transpose of `weight` [N, K]."""
    return DequantizedLinear(weight) if isinstance(weight, QuantizedWeight) else StockLinear(weight)


@dataclass(frozen=True, slots=True)
class StockExperts:
    """gate_up [experts, 2 * size, hidden_size], gate first; down [experts, hidden_size, size]."""

    gate_up: Tensor
    down: Tensor
    activation: Activation

    def __call__(self, x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        return moe_experts(x, self.gate_up, self.down, expert_ids, weights, self.activation)


def linear(weight: Tensor | QuantizedWeight, epilogue: Epilogue = PLAIN) -> FusedLinear:
    """The layer that multiplies by the transpose of `weight`: [N, K], or [2 N, K] for a gated epilogue."""
    return ComposedLinear(product(weight), epilogue, gated, add_norm)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last dimension, in fp32, returned in x's dtype (arXiv:1910.07467).

    weight: fp32, what the normed x is multiplied by; any shape that broadcasts to x. It is made of as few operations as possible: on a
    few rows each costs its dispatch, and torch's own rms_norm is seven of them on a CPU.
    """
    wide = x.float()
    normed = (wide * wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()).mul_(weight)
    return normed if x.dtype is torch.float32 else normed.to(x.dtype)


def add_norm(
    stream: Tensor | None, update: Tensor, norm: AddNorm, rms_norm: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
) -> tuple[Tensor, Tensor]:
    """End a sublayer with the output `update` and begin the next: see `AddNorm`. stream, update: [tokens, size]; a stream of None is zeros.

    Returns the stream with the update, and what the next sublayer reads of it: its norm, or without one the stream again.
    """
    total = update if norm.post is None else rms_norm(update, norm.post, norm.eps)
    if stream is not None:
        total = stream + total
    if norm.scale != 1.0:
        total = total * norm.scale
    return total, total if norm.pre is None else rms_norm(total, norm.pre, norm.eps)


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """activation(gate) * up, of gate and up side by side [tokens, 2 * size] (arXiv:2002.05202)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return activate(gate, activation) * up


def rotary_angles(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """positions int64 [tokens], frequencies fp32 [half] to cos, sin [tokens, half] of their products, computed in fp32."""
    angles = positions.float().unsqueeze(1) * frequencies
    return angles.cos().to(dtype), angles.sin().to(dtype)


def norm_rotate_store(
    qkv: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor, slots: KVSlots | None, values_are_keys: bool = False
) -> Tensor:
    """From the qkv projection to what attention needs: returns queries [tokens, num_heads, head_dim], and stores keys and values.

    qkv: [tokens, (num_heads + 2 * num_kv_heads) * head_dim], queries, keys, values; without `slots` queries only. values_are_keys: qkv
    has no values, and the keys before norm and rotation are the values too.
    weight: fp32 [heads, head_dim], for the heads that are normed: queries and keys, or all. Queries and keys are rotated by `rope`.
    """
    num_kv_heads = slots.key.shape[2] if slots else 0
    if values_are_keys:
        qkv = keys_as_values(qkv, num_kv_heads * weight.shape[1])
    heads = qkv.unflatten(1, (-1, weight.shape[1]))
    num_heads = heads.shape[1] - 2 * num_kv_heads
    normed, rest = heads.split((len(weight), heads.shape[1] - len(weight)), dim=1)
    normed = rms_norm(normed, weight, eps)
    q, k = rope(normed[:, : num_heads + num_kv_heads], cos, sin).split((num_heads, num_kv_heads), dim=1)
    if slots:
        v = rest if rest.shape[1] else normed[:, num_heads + num_kv_heads :]
        write_kv(slots.key, slots.value, k, v, slots.slot_mapping)
    return q


def keys_as_values(qk: Tensor, size: int) -> Tensor:
    """qk [tokens, ...], the last `size` of them keys, with the keys once more."""
    return torch.cat((qk, qk[:, -size:]), dim=1)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (j, j + head_dim / 2) of x [tokens, heads, head_dim] by the angles of cos, sin [tokens, head_dim / 2]."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def route(scores: Tensor, top_k: int, normalize: bool, expert_scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The top_k experts of each token and their weights, both [tokens, top_k], for the router's fp32 scores [tokens, experts].

    The weights are probabilities among all experts; normalize makes them sum to 1. expert_scale: fp32 [experts], multiplies them last.
    """
    weights, expert_ids = scores.softmax(-1).topk(top_k, dim=-1)
    if normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return expert_ids, weights if expert_scale is None else weights * expert_scale[expert_ids]


def experts(gate_up: Tensor, down: Tensor, activation: Activation) -> Experts:
    """The layer that computes `moe_experts` with these weights."""
    return StockExperts(gate_up, down, activation)


def moe_experts(x: Tensor, gate_up: Tensor, down: Tensor, expert_ids: Tensor, weights: Tensor, activation: Activation) -> Tensor:
    """For each token the weighted sum of its experts, each a gated MLP (arXiv:1701.06538). Experts that no token chose are not read.

    x: [tokens, hidden_size]. gate_up: [experts, 2 * size, hidden_size], gate first. down: [experts, hidden_size, size].
    expert_ids, weights (fp32): [tokens, top_k]. Computes in the dtype of the experts, sums in fp32, returns as x.
    """
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    wide, flat_ids, flat_weights = x.to(gate_up.dtype), expert_ids.t().flatten(), weights.t().flatten()  # first choices first
    by_expert = flat_ids.argsort(stable=True).split(torch.bincount(flat_ids, minlength=len(gate_up)).tolist())
    for expert, choices in enumerate(by_expert):  # indices into the flat ids
        if len(choices):
            tokens = choices % len(x)
            y = F.linear(gated(F.linear(wide[tokens], gate_up[expert]), activation), down[expert])
            out.index_add_(0, tokens, y.float() * flat_weights[choices, None])
    return out.to(x.dtype)


def write_kv(key: Tensor, value: Tensor, k: Tensor, v: Tensor, slot_mapping: Tensor) -> None:
    """Store k and v [tokens, num_kv_heads, head_dim] in the layer's blocks.

    key, value: [num_blocks, block_size, num_kv_heads, head_dim]. slot_mapping: int64 [tokens], block * block_size + offset.
    """
    block_size = key.shape[1]
    where = (slot_mapping // block_size, slot_mapping % block_size)
    key[where] = k.to(key.dtype)
    value[where] = v.to(value.dtype)


def paged_attention(
    q: Tensor,
    key: Tensor,
    value: Tensor,
    block_tables: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    scale: float,
    window: int | None,
) -> Tensor:
    """Causal attention of each row's new tokens over the row's blocks, where the new tokens' own KV already lies.

    q: [tokens, num_heads, head_dim], row after row. key, value: as in `write_kv`; num_heads is a multiple of num_kv_heads.
    block_tables: int32 [rows, max_blocks]; padding, and blocks before the window, are never read.
    cu_seqlens_q: int32 [rows + 1], where each row's queries start. seq_lens: int32 [rows], tokens up to the last query.
    window: how many keys a query sees, its own included; None for all. Returns [tokens, num_heads, head_dim] in q's dtype.
    """
    return PagedAttention(block_tables, cu_seqlens_q.tolist(), seq_lens.tolist(), window, key.shape[1])(q, key, value, scale)


def bind_attention(
    block_tables: Tensor, rows: StepRows, window: int | None, block_size: int, block_mass: Tensor | None = None
) -> Attention:
    """`paged_attention` for the rows of one step and one layer group: (q, key, value, scale) to the output.

    block_mass: fp32 [num_blocks], to which each call adds what the rows of one token attend to: for every block the softmax
    probabilities of its keys, summed over keys, rows and heads. None, the usual case, costs nothing.
    """
    attention = PagedAttention(rows.tables(block_tables, block_size), rows.starts, rows.lengths, window, block_size)
    return attention if block_mass is None else MassAttention(attention, block_tables, rows, window, block_size, block_mass)


def place_tokens(rows: StepRows, known_ids: Tensor, newest_ids: Tensor, block_tables: Tensor, block_size: int, out: TokenPlaces) -> None:
    """Work out the step's tokens from its rows, into `out`; zeros for tokens after the last row.

    known_ids: int32 [tokens], -1 where the id is the newest one of the row's slot. newest_ids: int64 [slots].
    block_tables: int32 [groups, slots, max_blocks]. rows.slots: each row's slot.
    """
    assert rows.slots is not None
    starts = rows.cu_seqlens_q.long()
    row = torch.repeat_interleave(starts.diff())  # [tokens of rows]
    count, slot = len(row), rows.slots[row].long()
    positions = torch.arange(count, device=row.device) + (rows.seq_lens - starts[1:])[row]
    known = known_ids[:count]
    blocks = block_tables[:, slot, positions // block_size]
    for tensor in out:
        tensor.zero_()
    out.input_ids[:count] = torch.where(known < 0, newest_ids[slot], known)
    out.positions[:count] = positions
    out.slot_mapping[:, :count] = blocks * block_size + positions % block_size


def keep_tokens(ids: Tensor, slots: Tensor, newest_ids: Tensor, out: Tensor) -> None:
    """Keep the sampled ids, int64 [rows], as the newest ones of their slots, int32 [rows], and in the first places of `out`.

    newest_ids: int64 [slots]. Where several rows have the same slot, that of padding, any of them may win.
    """
    out[: len(ids)] = ids
    newest_ids[slots] = ids


def fused(function: TokenMap) -> TokenMap:
    """The same function, in as few launches as a set can make of it; here, as it is.

    function: made of PyTorch's operations alone; what it reads beside its argument, such as weights, never changes.
    """
    return function
