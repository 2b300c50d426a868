"""`ActiveBatch`: the admitted requests in order of rank, and the slots they hold. Decides nothing and takes no blocks."""

from bisect import insort
from collections.abc import Callable

from inference_server.core.request import RequestStatus, ScheduledRequest
from inference_server.scheduler.ranked_queue import Rank


class ActiveBatch:
    """prefilling, running: rows in ascending order of rank. A row is running once its last known token has been scheduled.

    num_tokens: the sum of the rows' `num_tokens`. The caller that schedules a sample of a running row adds it here.
    """

    def __init__(self, max_size: int, rank: Callable[[ScheduledRequest], Rank]) -> None:
        self.prefilling: list[ScheduledRequest] = []
        self.running: list[ScheduledRequest] = []
        self.num_tokens = 0
        self._rank = rank
        self._free_slots = list(range(max_size - 1, -1, -1))

    def __len__(self) -> int:
        return len(self.prefilling) + len(self.running)

    @property
    def full(self) -> bool:
        return not self._free_slots

    def add(self, request: ScheduledRequest) -> None:
        """Admit a request. Raises IndexError when the batch is full."""
        request.slot = self._free_slots.pop()
        request.status = RequestStatus.PREFILLING
        insort(self.prefilling, request, key=self._rank)
        self.num_tokens += request.num_tokens

    def start_running(self, request: ScheduledRequest) -> None:
        """Move a prefilling row, whose first sample has just been scheduled, to the running ones."""
        self.prefilling.remove(request)
        insort(self.running, request, key=self._rank)
        request.status = RequestStatus.RUNNING
        request.num_inflight_tokens += 1
        self.num_tokens += 1

    def remove(self, request: ScheduledRequest) -> None:
        """Remove a row and free its slot. Its status must still be the one that it had in the batch."""
        (self.prefilling if request.status is RequestStatus.PREFILLING else self.running).remove(request)
        self.num_tokens -= request.num_tokens
        self._free_slots.append(request.slot)
        request.slot = -1

    def worst_ranked(self) -> ScheduledRequest:
        """Raises ValueError when the batch is empty."""
        return max((rows[-1] for rows in (self.running, self.prefilling) if rows), key=self._rank)

    def check_integrity(self) -> None:
        """Raises AssertionError with what is off."""
        rows = self.prefilling + self.running
        slots = sorted([request.slot for request in rows] + self._free_slots)
        assert slots == list(range(len(slots))), "slots are off"
        assert all(r.status is RequestStatus.PREFILLING for r in self.prefilling), "a status is off"
        assert all(r.status is RequestStatus.RUNNING and r.num_computed_tokens == r.num_tokens - 1 for r in self.running), "a row is off"
        assert self.num_tokens == sum(r.num_tokens for r in rows), "the active tokens are off"
