"""What a step sends about its rows and tokens, at fixed places of one side of the `Staging`.

Where the same rows were written there before and go on decoding, only their lengths are written anew. Block tables are not here but in
the `InputBatch`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_server.core.plan import StepPlan

IntArray = NDArray[np.int64]

_NEWEST = -1  # instead of an id: the newest one of the row's slot


@dataclass(frozen=True, slots=True)
class StepShape:
    """The size of a forward, padding included. only_singles: every row computes one token; if not, rows of padding compute none.

    num_sampled: how many tokens the layers without KV of their own see; None for all.
    """

    num_tokens: int
    num_rows: int
    only_singles: bool
    num_sampled: int | None = None


class Sections(NamedTuple):
    """The numbers of the rows, at fixed places of a buffer on either side: views of a tensor or of an array."""

    cu_seqlens: Any
    seq_lens: Any
    slots: Any
    sampled_tokens: Any
    sampled_slots: Any
    sampled_lens: Any

    @classmethod
    def size(cls, max_rows: int) -> int:
        return len(cls._fields) * max_rows + 1

    @classmethod
    def of(cls, buffer: Any, max_rows: int) -> "Sections":
        first = max_rows + 1
        return cls(buffer[:first], *(buffer[i : i + max_rows] for i in range(first, cls.size(max_rows), max_rows)))

    def write(self, shape: StepShape, slots: IntArray, counts: IntArray, ends: IntArray, samples: NDArray[np.bool_]) -> None:
        """Write the rows and which of their tokens are sampled from, then padding."""
        rows, padding = len(slots), slice(len(slots), shape.num_rows)
        null_slot = len(self.slots)
        self.cu_seqlens[0] = 0
        np.cumsum(counts, out=self.cu_seqlens[1 : rows + 1])
        stops = self.cu_seqlens[1 : rows + 1]
        self.seq_lens[:rows] = ends
        self.slots[:rows] = slots
        self.slots[padding] = null_slot
        self.seq_lens[padding] = shape.only_singles
        num_tokens = int(self.cu_seqlens[rows])
        num_padding = shape.num_rows - rows
        self.cu_seqlens[rows + 1 : shape.num_rows + 1] = num_tokens + np.arange(1, num_padding + 1) * shape.only_singles
        num_sampled = int(samples.sum())
        self.sampled_tokens[:num_sampled] = stops[samples] - 1
        self.sampled_tokens[num_sampled:] = 0
        self.sampled_slots[:num_sampled] = slots[samples]
        self.sampled_slots[num_sampled:] = null_slot
        self.sampled_lens[:num_sampled] = ends[samples]
        self.sampled_lens[num_sampled:] = 1


class StagedRows:
    """buffer: int32, the sections of max_rows rows, then the ids of tokens."""

    def __init__(self, buffer: NDArray[np.int32], max_rows: int) -> None:
        self.buffer = buffer
        self._sections = Sections.of(buffer, max_rows)
        self._ids = buffer[Sections.size(max_rows) :]
        self._slots: IntArray | None = None  # of the rows that are there, if all of them decode
        self._shape: StepShape | None = None

    def write(self, plan: StepPlan, shape: StepShape, slots: IntArray, ends: IntArray) -> None:
        """slots, ends: of the plan's rows. slots: the array object of the call before if all its rows decoded and go on."""
        if self._slots is slots and self._shape == shape:
            self._sections.seq_lens[: len(ends)] = self._sections.sampled_lens[: len(ends)] = ends
            return
        self._slots, self._shape = (slots if plan.num_decodes == len(plan) else None), shape
        counts, samples = np.array(plan.num_new_tokens, dtype=np.int64), np.array(plan.samples, dtype=bool)
        self._sections.write(shape, slots, counts, ends, samples)
        token_ids = _token_ids(plan)
        self._ids[: len(token_ids)] = token_ids
        self._ids[len(token_ids) : shape.num_tokens] = 0


def _token_ids(plan: StepPlan) -> list[int]:
    """The ids of all tokens, row after row; those that the rows' slots have sampled stay on the device."""
    token_ids = [_NEWEST] * plan.num_decodes
    for row in plan.prefill_rows:
        known, start, count = plan.requests[row].token_ids, plan.starts[row], plan.num_new_tokens[row]
        token_ids += known[start : start + count]
        if start + count > len(known):
            token_ids.append(_NEWEST)
    return token_ids
