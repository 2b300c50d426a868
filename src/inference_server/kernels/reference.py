"""The operations in plain PyTorch: the `Ops` that every faster set is checked against, and what serves where there is none.

Attention computes in fp32 whatever the cache stores. It reads only slots that hold the row's own tokens, so stale memory, NaN
included, never reaches a result; and rows of very different lengths are not padded to the longest.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from inference_server.kernels.composed import ComposedLinear, activate
from inference_server.kernels.ops import PLAIN, Activation, AddNorm, Attention, Epilogue, Experts, FusedLinear, KVSlots, Linear
from inference_server.kernels.quantize import QuantizedWeight
from inference_server.kernels.step_rows import StepRows, TokenPlaces

QUERY_CHUNK = 256  # queries of one row handled at a time: a mask is [QUERY_CHUNK, keys], never [tokens, tokens]
PACK_KEYS = 2048  # keys of decode rows gathered at a time, padding included: few enough to stay in the cache


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
    """A linear layer of int8 weights, multiplied as the numbers they stand for; activations stay as they are."""

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

    weight: fp32, what the normed x is multiplied by; any shape that broadcasts to x. As few operations as it takes: on a few rows
    each costs its dispatch, and torch's own rms_norm is seven of them on a CPU.
    """
    wide = x.float()
    normed = (wide * wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()).mul_(weight)
    return normed if x.dtype is torch.float32 else normed.to(x.dtype)


def add_norm(
    stream: Tensor | None, update: Tensor, norm: AddNorm, rms_norm: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
) -> tuple[Tensor, Tensor]:
    """End a sublayer with the output `update` and begin the next: see `AddNorm`. stream, update: [tokens, size]; no stream counts as zeros.

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
    """From the qkv projection to what attention needs: queries returned [tokens, num_heads, head_dim], keys and values stored.

    qkv: [tokens, (num_heads + 2 * num_kv_heads) * head_dim], queries, keys, values; without `slots` queries only. values_are_keys: the
    values are left out, the keys before norm and rotation are the values too.
    weight: fp32 [heads, head_dim], the norm of so many heads: of queries and keys, or of all. Queries and keys are rotated by `rope`.
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

    The weights are probabilities among all experts; normalize makes them sum to 1. expert_scale: fp32 [experts], multiplies them then.
    """
    weights, expert_ids = scores.softmax(-1).topk(top_k, dim=-1)
    if normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return expert_ids, weights if expert_scale is None else weights * expert_scale[expert_ids]


def experts(gate_up: Tensor, down: Tensor, activation: Activation) -> Experts:
    """The layer that computes `moe_experts` of these weights."""
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
    """Work out the step's tokens from its rows, into `out`; zeros for tokens behind the last row.

    known_ids: int32 [tokens], -1 where the id is the newest one of the row's slot. newest_ids: int64 [slots].
    block_tables: int32 [groups, slots, max_blocks]. rows.slots says which slot is whose.
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


class _Read(NamedTuple):
    """One attention call: which tokens ask, which slots they read, which of these each token sees (None: all, or causally)."""

    tokens: slice | Tensor
    slots: tuple[Tensor, Tensor]  # block and offset, each [rows, keys] for decode rows, [keys] for a chunk of one row
    mask: Tensor | None
    causal: bool


class PagedAttention:
    """`paged_attention` split in two: what to read is worked out here once, then each layer of the group calls it.

    starts, lengths: cu_seqlens_q and seq_lens, which are needed on the host. decodes: what the rows of one token read.
    """

    def __init__(self, block_tables: Tensor, starts: list[int], lengths: list[int], window: int | None, block_size: int) -> None:
        self._tables, self._window, self._block_size = block_tables, window, block_size
        counts = [stop - start for start, stop in pairwise(starts)]
        singles = [row for row, count in enumerate(counts) if count == 1]
        self.decodes = [self._decode_read(rows, width, starts, lengths) for rows, width in _packs(singles, lengths, window)]
        self._chunks = [
            self._chunk_read(row, first, min(first + QUERY_CHUNK, counts[row]), starts[row], lengths[row] - counts[row])
            for row in range(len(lengths))
            if counts[row] != 1
            for first in range(0, counts[row], QUERY_CHUNK)
        ]

    def __call__(self, q: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        out = torch.empty_like(q)
        for read in self.decodes:
            out[read.tokens] = _attend_decodes(q[read.tokens], key[read.slots], value[read.slots], read.mask, scale)
        for read in self._chunks:
            out[read.tokens] = _attend_chunk(q[read.tokens], key[read.slots], value[read.slots], read, scale)
        return out

    def _decode_read(self, rows: list[int], width: int, starts: list[int], lengths: list[int]) -> _Read:
        """The last `width` keys of each row, or all it has."""
        device = self._tables.device
        total = torch.tensor([lengths[row] for row in rows], device=device).unsqueeze(1)
        first = (total - self._window).clamp(min=0) if self._window else 0
        positions = first + torch.arange(width, device=device)  # [rows, width]
        same_length = all(min(lengths[row], self._window or lengths[row]) == width for row in rows)
        mask = None if same_length else (positions < total)[:, None, None]
        positions = positions.minimum(total - 1)  # padding repeats the row's last key
        tables = self._tables[torch.tensor(rows, device=device)]
        slots = (tables.gather(1, positions // self._block_size), positions % self._block_size)
        in_order = starts[rows[0]] == 0 and rows == list(range(len(rows)))
        tokens = slice(0, len(rows)) if in_order else torch.tensor([starts[row] for row in rows], device=device)
        return _Read(tokens, slots, mask, causal=False)

    def _chunk_read(self, row: int, first: int, stop: int, row_start: int, num_before: int) -> _Read:
        """Queries [first, stop) of a row whose tokens start at row_start in the batch and at position num_before in the sequence."""
        device = self._tables.device
        queries = torch.arange(num_before + first, num_before + stop, device=device)
        oldest = max(0, num_before + first - self._window + 1) if self._window else 0
        keys = torch.arange(oldest, num_before + stop, device=device)
        causal = num_before + first == 0 and stop <= (self._window or stop)
        distance = queries.unsqueeze(1) - keys
        mask = None if causal else (distance >= 0) & (distance < (self._window or num_before + stop))
        slots = (self._tables[row][keys // self._block_size], keys % self._block_size)
        return _Read(slice(row_start + first, row_start + stop), slots, mask, causal)


class MassAttention:
    """Any attention bound to a step, and the mass that its rows of one token add to `block_mass` (see `bind_attention`).

    Probabilities are computed here once more, keys read twice, so it serves every set of operations that has no kernel for it.
    """

    def __init__(
        self, attention: Attention, block_tables: Tensor, rows: StepRows, window: int | None, block_size: int, block_mass: Tensor
    ) -> None:
        self._attention, self._block_mass = attention, block_mass
        single = rows.num_single
        tables = rows.tables(block_tables, block_size)[:single]
        self._reads = PagedAttention(tables, rows.starts[: single + 1], rows.lengths[:single], window, block_size).decodes

    def __call__(self, q: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        for read in self._reads:
            weights = _decode_weights(q[read.tokens], key[read.slots], read.mask, scale)
            self._block_mass.index_add_(0, read.slots[0].flatten(), weights.flatten())
        return self._attention(q, key, value, scale)


def _packs(rows: list[int], lengths: list[int], window: int | None) -> Iterator[tuple[list[int], int]]:
    """Rows to handle in one call, and the most keys any of them sees: all together if that is little, else those of similar length."""
    seen = {row: min(lengths[row], window or lengths[row]) for row in rows}
    longest_last = sorted(rows, key=seen.__getitem__)
    if rows and len(rows) * seen[longest_last[-1]] <= PACK_KEYS:
        yield rows, seen[longest_last[-1]]
        return
    while longest_last:
        width = seen[longest_last[-1]]
        count = max(1, PACK_KEYS // width)
        yield longest_last[-count:], width
        del longest_last[-count:]


def _attend_decodes(q: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """One query a row: q [rows, num_heads, head_dim], key, value [rows, keys, num_kv_heads, head_dim], mask [rows, 1, 1, keys]."""
    grouped = q.float().unflatten(1, (key.shape[2], -1))  # heads that share a KV head go in as its queries: keys are read once
    k, v = key.float().transpose(1, 2), value.float().transpose(1, 2)
    return F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scale).flatten(1, 2).to(q.dtype)


def _decode_weights(q: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Probabilities [rows, keys] of `_attend_decodes`, summed over the heads; 0 where the mask hides a key."""
    grouped = q.float().unflatten(1, (key.shape[2], -1))
    scores = grouped @ key.float().permute(0, 2, 3, 1) * scale  # [rows, num_kv_heads, group, keys]
    return (scores if mask is None else scores.masked_fill(~mask, float("-inf"))).softmax(-1).sum((1, 2))


def _attend_chunk(q: Tensor, key: Tensor, value: Tensor, read: _Read, scale: float) -> Tensor:
    """Queries of one row: q [tokens, num_heads, head_dim], key, value [keys, num_kv_heads, head_dim], mask [tokens, keys]."""
    grouped = q.float().unflatten(1, (key.shape[1], -1)).permute(1, 2, 0, 3)  # [num_kv_heads, group, tokens, head_dim]
    k, v = (kv.float().transpose(0, 1).unsqueeze(1).expand(-1, grouped.shape[1], -1, -1) for kv in (key, value))
    out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=read.mask, is_causal=read.causal, scale=scale)
    return out.permute(2, 0, 1, 3).flatten(1, 2).to(q.dtype)
