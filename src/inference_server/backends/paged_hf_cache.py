"""The block pool as transformers sees it: a `Cache` whose `update` scatters new KV through block tables and gathers the past.

Every layer group gets one `GroupIndex` a forward: where the new tokens go, where the past lies, and the mask over both. The
padding of shorter rows reads the null block, which stays zero, so that nothing a row does not own can reach its result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from inference_server.backends.kv_tensors import KVTensors
from inference_server.core.request import BlockTable


@dataclass(frozen=True, slots=True)
class GroupIndex:
    """One forward's places in one layer group, for R rows of Q new tokens each and up to P past tokens.

    write_rows [N]: which of the R * Q new tokens are kept; the others have left the window already. write_blocks and
    write_offsets [N]: where they go. read_blocks and read_offsets [R, P]: where the past lies, 0 for padding.
    mask [R, 1, Q, P + Q]: 0 where a query may attend and the lowest finite value where not; past first, then the new tokens.
    """

    write_rows: Tensor
    write_blocks: Tensor
    write_offsets: Tensor
    read_blocks: Tensor
    read_offsets: Tensor
    mask: Tensor


def index_group(
    tables: Sequence[BlockTable],
    starts: Sequence[int],
    num_new: int,
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> GroupIndex:
    """The places of rows that each compute tokens [start, start + num_new). A window of W keeps keys q - W < k <= q."""
    start = torch.tensor(starts).unsqueeze(1)  # [R, 1]
    first = start.clamp(max=0) if window is None else (start - window + 1).clamp(min=0)
    past = first + torch.arange(int((start - first).max()))  # [R, P]
    exists = past < start
    new = start + torch.arange(num_new)  # [R, Q]
    read_blocks = _look_up(tables, past // block_size * exists) * exists
    write_blocks = _look_up(tables, new // block_size).flatten()
    kept = write_blocks.nonzero().squeeze(1)

    keys = torch.cat([past, new], 1).unsqueeze(1)  # [R, 1, P + Q]
    queries = new.unsqueeze(2)  # [R, Q, 1]
    visible = torch.cat([exists, torch.ones_like(new, dtype=torch.bool)], 1).unsqueeze(1) & (keys <= queries)
    if window is not None:
        visible &= keys > queries - window
    mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min).unsqueeze(1)
    return GroupIndex(
        write_rows=kept.to(device),
        write_blocks=write_blocks[kept].to(device),
        write_offsets=(new.flatten()[kept] % block_size).to(device),
        read_blocks=read_blocks.to(device),
        read_offsets=(past % block_size * exists).to(device),
        mask=mask.to(device),
    )


def _look_up(tables: Sequence[BlockTable], logical: Tensor) -> Tensor:
    """Block ids of logical block indices, [R, N] to [R, N]."""
    longest = max(len(table.block_ids) for table in tables)
    ids = torch.tensor([table.block_ids + [0] * (longest - len(table.block_ids)) for table in tables], dtype=torch.int64)
    return ids.gather(1, logical)


class PagedHFCache(Cache):
    """The view of one forward on the pool; made anew for each."""

    def __init__(self, kv: KVTensors, groups: Sequence[GroupIndex], seq_length: int) -> None:
        super().__init__(layers=[])
        self._kv = kv
        self._groups = groups
        self._seq_length = seq_length

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """New KV [R, H, Q, D] in, all KV that the new tokens may attend to [R, H, P + Q, D] out."""
        index = self._groups[self._kv.group_of(layer_idx)]
        return (
            _exchange(self._kv.key(layer_idx), key_states, index),
            _exchange(self._kv.value(layer_idx), value_states, index),
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Past tokens of the longest row. Positions and masks are handed to the model, so nothing is derived from it."""
        return self._seq_length


def _exchange(pool: Tensor, new: Tensor, index: GroupIndex) -> Tensor:
    """Write the new states into the pool ([num_blocks, block_size, H, D]) and put the past before them."""
    tokens = new.transpose(1, 2).flatten(0, 1)  # [R * Q, H, D]
    pool[index.write_blocks, index.write_offsets] = tokens[index.write_rows].to(pool.dtype)
    past = pool[index.read_blocks, index.read_offsets].transpose(1, 2)
    return torch.cat([past.to(new.dtype), new], 2)


class KVProbe(Cache):
    """Keeps nothing; notes the KV shape of every layer that asks for its past: the layers that own KV."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.shapes: dict[int, tuple[torch.Size, torch.Size]] = {}

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.shapes[layer_idx] = (key_states.shape, value_states.shape)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0
