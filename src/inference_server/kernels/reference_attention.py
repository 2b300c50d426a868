"""Attention over blocks in plain PyTorch, bound to a step: what to read is worked out once, then each layer of the group reads it.

It computes in fp32 whatever the cache stores. It reads only slots that hold the row's own tokens, so stale memory, NaN included,
never reaches a result; and rows of very different lengths are not padded to the longest.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from inference_server.kernels.ops import Attention
from inference_server.kernels.step_rows import StepRows

QUERY_CHUNK = 256  # queries of one row handled at a time: a mask is [QUERY_CHUNK, keys], never [tokens, tokens]
PACK_KEYS = 2048  # keys of decode rows gathered at a time, padding included: few enough to stay in the cache


class _Read(NamedTuple):
    """One attention call: which tokens ask, which slots they read, which of these each token sees (None: all, or causally)."""

    tokens: slice | Tensor
    slots: tuple[Tensor, Tensor]  # block and offset, each [rows, keys] for decode rows, [keys] for a chunk of one row
    mask: Tensor | None
    causal: bool


class PagedAttention:
    """`reference.paged_attention` of one step and layer group, as a call (q, key, value, scale) for each layer.

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
    """Any attention bound to a step, and the mass that its rows of one token add to `block_mass` (see `reference.bind_attention`).

    It computes the probabilities a second time and so reads the keys twice; it serves every set of operations without a kernel for this.
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
