"""`Staging` and `Returns`: how a step's numbers reach the device and its ids come back, in one copy each that blocks nobody.

Numbers are written into page-locked memory and copied into one fixed place on the device. There are two sides, since the host fills
the next while the device may still read the last. On a CPU both are the same memory, and nothing is copied.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_NUM_SIDES = 2


class Staging:
    """device: int32 [size], where the numbers arrive. Its address never changes, so captured launches may read it.

    sides: the host's memory, int32 [size] each; a side still holds what was written to it before.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        num_sides = 1 if device.type == "cpu" else _NUM_SIDES
        self._sides = [torch.zeros(size, dtype=torch.int32, pin_memory=self._on_cuda) for _ in range(num_sides)]
        self.sides = [side.numpy() for side in self._sides]
        self._copied: list[torch.cuda.Event | None] = [None] * num_sides
        self._current = 0
        self.device = self._sides[0] if device.type == "cpu" else torch.zeros(size, dtype=torch.int32, device=device)

    def begin(self) -> int:
        """The index of the side to write next, once the device has read what it held."""
        self._current = (self._current + 1) % len(self._sides)
        copied = self._copied[self._current]
        if copied is not None:
            copied.synchronize()
        return self._current

    def send(self, size: int) -> None:
        """Enqueue the copy of the first `size` numbers."""
        side = self._sides[self._current]
        if side is self.device:
            return
        self.device[:size].copy_(side[:size], non_blocking=self._on_cuda)
        if self._on_cuda:
            event = self._copied[self._current] = self._copied[self._current] or torch.cuda.Event()
            event.record()


@dataclass(slots=True)
class ReturnedIds:
    """Ids on their way to the host; `done` is None where they are there."""

    ids: Tensor
    count: int
    done: torch.cuda.Event | None = None


class Returns:
    """Page-locked memory for the ids of the steps in flight, at most max_rows each."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self._max_rows = max_rows
        self._on_cuda = device.type == "cuda"
        self._free: list[ReturnedIds] = []

    def enqueue(self, ids: Tensor) -> ReturnedIds:
        """ids: int64 [count] on the device. Even with count 0, `wait` for the result waits for all that was enqueued before."""
        if not self._on_cuda:
            return ReturnedIds(ids.to("cpu", copy=True), len(ids))
        target = self._free.pop() if self._free else self._allocate()
        target.count = len(ids)
        if target.count:
            target.ids[: target.count].copy_(ids, non_blocking=True)
        assert target.done is not None
        target.done.record()
        return target

    def wait(self, returned: ReturnedIds) -> list[int]:
        """The ids, once they have come. Call it once."""
        if returned.done is not None:
            returned.done.synchronize()
            self._free.append(returned)
        return returned.ids[: returned.count].tolist()

    def _allocate(self) -> ReturnedIds:
        return ReturnedIds(torch.empty(self._max_rows, dtype=torch.int64, pin_memory=True), 0, torch.cuda.Event())
