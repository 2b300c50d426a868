"""The order in which waiting requests are served, and in which running ones give way. Holds the waiting queue, nothing else."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from inference_server.core.request import ScheduledRequest

Rank = tuple[float, ...]


class FCFSPolicy:
    """First come, first served within a priority; the lower priority value goes first. Only `remove` searches the queue."""

    def __init__(self) -> None:
        self._queue: list[tuple[Rank, ScheduledRequest]] = []
        self._ranks: dict[str, Rank] = {}
        self._num_pushed = 0

    def push(self, request: ScheduledRequest) -> None:
        """Queue a new request behind those of its priority that arrived before it."""
        self._insert(request, preempted=False)

    def requeue(self, request: ScheduledRequest) -> None:
        """Queue a preempted request before all of its priority that have not run yet."""
        self._insert(request, preempted=True)

    def peek(self) -> ScheduledRequest | None:
        """The request to serve next."""
        return self._queue[0][1] if self._queue else None

    def pop(self) -> ScheduledRequest:
        """Take out the request to serve next. Raises IndexError when none waits."""
        _, request = self._queue.pop(0)
        del self._ranks[request.request_id]
        return request

    def remove(self, request: ScheduledRequest) -> bool:
        """Take out a request wherever it stands. False if it does not wait here."""
        rank = self._ranks.pop(request.request_id, None)
        if rank is None:
            return False
        del self._queue[bisect_left(self._queue, rank, key=_rank_of_entry)]
        return True

    def rank(self, request: ScheduledRequest) -> Rank:
        """Admitted requests are served in ascending order of this; the highest is the first victim of preemption."""
        return request.priority, request.arrival_time

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[ScheduledRequest]:
        return (request for _, request in self._queue)

    def _insert(self, request: ScheduledRequest, *, preempted: bool) -> None:
        self._num_pushed += 1
        rank = (request.priority, 0 if preempted else 1, request.arrival_time, self._num_pushed)
        self._ranks[request.request_id] = rank
        insort(self._queue, (rank, request), key=_rank_of_entry)


def _rank_of_entry(entry: tuple[Rank, ScheduledRequest]) -> Rank:
    return entry[0]
