"""The operations in plain PyTorch: what every faster kernel is checked against, and what the CPU serves with.

Attention computes in fp32 whatever the cache stores. It reads only slots that hold the row's own tokens, so stale memory, NaN
included, never reaches a result; and rows of very different lengths are not padded to the longest.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

QUERY_CHUNK = 512  # queries of one row handled at a time: a mask is [QUERY_CHUNK, keys], never [tokens, tokens]
PACK_KEYS = 4096  # keys of decode rows gathered at a time, padding included: few enough to stay in the processor's cache


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last dimension, in fp32, returned in x's dtype (arXiv:1910.07467).

    weight: fp32, what the normed x is multiplied by; any shape that broadcasts to x.
    """
    return (F.rms_norm(x.float(), x.shape[-1:], eps=eps) * weight).to(x.dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (j, j + head_dim / 2) of x [tokens, heads, head_dim] by the angles of cos, sin [tokens, head_dim / 2]."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def write_kv(key: Tensor, value: Tensor, k: Tensor, v: Tensor, slot_mapping: Tensor) -> None:
    """Store k and v [tokens, num_kv_heads, head_dim] in the layer's blocks.

    key, value: [num_blocks, block_size, num_kv_heads, head_dim]. slot_mapping: int64 [tokens], block * block_size + offset.
    """
    block_size = key.shape[1]
    where = (slot_mapping // block_size, slot_mapping % block_size)
    key[where] = k
    value[where] = v


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
    out = torch.empty_like(q)
    starts, lengths = cu_seqlens_q.tolist(), seq_lens.tolist()
    decodes: list[int] = []
    for row, length in enumerate(lengths):
        tokens = slice(starts[row], starts[row + 1])
        if tokens.stop - tokens.start == 1:
            decodes.append(row)
        else:
            out[tokens] = _prefill(q[tokens], key, value, block_tables[row], length, scale, window)
    for rows, width in _packs(decodes, lengths, window):
        index = torch.tensor(rows, device=q.device)
        at = cu_seqlens_q[index]
        out[at] = _decode(q[at], key, value, block_tables[index], seq_lens[index], width, scale, window)
    return out


def _packs(rows: list[int], lengths: list[int], window: int | None) -> Iterator[tuple[list[int], int]]:
    """Rows of similar length that one call handles, and the most keys any of them sees."""
    seen = {row: min(lengths[row], window or lengths[row]) for row in rows}
    longest_last = sorted(rows, key=seen.__getitem__)
    while longest_last:
        width = seen[longest_last[-1]]
        count = max(1, PACK_KEYS // width)
        yield longest_last[-count:], width
        del longest_last[-count:]


def _decode(
    q: Tensor, key: Tensor, value: Tensor, block_tables: Tensor, seq_lens: Tensor, width: int, scale: float, window: int | None
) -> Tensor:
    """One query a row: q [rows, num_heads, head_dim] over the last `width` keys of each row at most."""
    block_size, num_kv_heads = key.shape[1:3]
    lengths = seq_lens.long().unsqueeze(1)
    first = (lengths - window).clamp(min=0) if window else torch.zeros_like(lengths)
    positions = first + torch.arange(width, device=q.device)  # [rows, width]
    visible = positions < lengths
    positions = positions.minimum(lengths - 1)  # padding repeats the row's last key
    where = (block_tables.gather(1, positions // block_size), positions % block_size)
    k, v = key[where].float().transpose(1, 2), value[where].float().transpose(1, 2)  # [rows, num_kv_heads, width, head_dim]
    # The heads that share a KV head go in as its queries, so that keys are read once.
    grouped = q.float().unflatten(1, (num_kv_heads, -1))
    return F.scaled_dot_product_attention(grouped, k, v, attn_mask=visible[:, None, None], scale=scale).flatten(1, 2).to(q.dtype)


def _prefill(q: Tensor, key: Tensor, value: Tensor, block_table: Tensor, length: int, scale: float, window: int | None) -> Tensor:
    """The last len(q) tokens of one row of `length` tokens: q [tokens, num_heads, head_dim]."""
    block_size, num_kv_heads = key.shape[1:3]
    outputs = []
    start = length - len(q)
    for chunk in q.split(QUERY_CHUNK):
        stop = start + len(chunk)
        first = max(0, start - window + 1) if window else 0
        positions = torch.arange(first, stop, device=q.device)
        where = (block_table[positions // block_size], positions % block_size)
        grouped = chunk.float().unflatten(1, (num_kv_heads, -1)).permute(1, 2, 0, 3)  # [num_kv_heads, group, tokens, head_dim]
        k, v = (kv[where].float().transpose(0, 1).unsqueeze(1).expand(-1, grouped.shape[1], -1, -1) for kv in (key, value))
        causal = start == 0 and stop <= (window or stop)
        mask = None if causal else _mask(start, stop, first, window, q.device)
        chunk_out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask, is_causal=causal, scale=scale)
        outputs.append(chunk_out.permute(2, 0, 1, 3).flatten(1, 2))
        start = stop
    return torch.cat(outputs).to(q.dtype)


def _mask(start: int, stop: int, first: int, window: int | None, device: torch.device) -> Tensor:
    """Which keys [first, stop) the queries [start, stop) see: bool [queries, keys]."""
    distance = torch.arange(start, stop, device=device).unsqueeze(1) - torch.arange(first, stop, device=device)
    return (distance >= 0) & (distance < window) if window else distance >= 0
