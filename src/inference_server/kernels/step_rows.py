"""`StepRows`: where the rows of a step lie in its flat batch, on the host for planning and on the device for kernels that look it up.

Lengths that the host has are handed on from the host, so that nothing waits for the device to read them back.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True, slots=True)
class StepRows:
    """Where the rows of a step begin and how long they are, on the host and on the device; the first num_single have one token.

    For a launch that is captured for later steps the host's values are bounds: the lengths are the longest there can be, num_single
    counts the rows that may have one token, and the last row stands for those that may have more.
    slots: int32 [rows], each row's line in the block tables; None where that of row i is line i.
    """

    starts: list[int]
    lengths: list[int]
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    num_single: int
    slots: Tensor | None = None

    def tables(self, block_tables: Tensor, block_size: int) -> Tensor:
        """The rows' own lines of the block tables [slots, max_blocks], no wider than the longest row needs."""
        if self.slots is None:
            return block_tables
        return block_tables[:, : -(-max(self.lengths, default=0) // block_size)].index_select(0, self.slots)


class TokenPlaces(NamedTuple):
    """For each token of a step: its id, its position in its sequence, and where its KV goes in each layer group.

    input_ids, positions: int64 [tokens]. slot_mapping: int64 [groups, tokens], block * block_size + offset.
    """

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
