"""The order in which waiting requests are served, and in which running ones give way. Holds the waiting queue, nothing else.

Under every policy the lower priority value goes first.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from inference_server.core.options import PolicyName
from inference_server.core.records import FairnessStats
from inference_server.core.request import ScheduledRequest
from inference_server.scheduler.fair_policy import FairPolicy
from inference_server.scheduler.ranked_queue import Rank, RankedQueue


class SchedulingPolicy(Protocol):
    """Every request is pushed once, may start and be requeued any number of times, and ends once."""

    def push(self, request: ScheduledRequest) -> None:
        """Queue a new request."""
        ...

    def requeue(self, request: ScheduledRequest) -> None:
        """Queue a preempted request before all of its priority that have not run yet."""
        ...

    def peek(self) -> ScheduledRequest | None:
        """The request to serve next."""
        ...

    def lookahead(self, limit: int) -> Sequence[ScheduledRequest]:
        """Up to `limit` waiting requests, about in order, for an admission that may pass over those that do not fit."""
        ...

    def start(self, request: ScheduledRequest) -> None:
        """The waiting request is admitted. Its rank must not change until it is requeued or ends."""
        ...

    def charge(self, requests: Iterable[ScheduledRequest]) -> None:
        """Each of the requests has returned one token."""
        ...

    def end(self, request: ScheduledRequest) -> bool:
        """The request has ended. Returns whether it was waiting."""
        ...

    def rank(self, request: ScheduledRequest) -> Rank:
        """Admitted requests are served in ascending order of this; the highest is the first victim of preemption."""
        ...

    def tokens_ahead(self, request: ScheduledRequest) -> int:
        """About how many queued tokens are served before a request that is not queued yet."""
        ...

    def fairness(self, limit: int) -> tuple[FairnessStats, ...]:
        """The keys that have had the most service, at most `limit`."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[ScheduledRequest]:
        """The waiting requests, in queue order."""
        ...


def create_policy(name: PolicyName) -> SchedulingPolicy:
    return FairPolicy() if name is PolicyName.FAIR else FCFSPolicy()


class FCFSPolicy:
    """First come, first served within a priority."""

    def __init__(self) -> None:
        self._queue: RankedQueue[ScheduledRequest] = RankedQueue()
        self._ranks: dict[str, Rank] = {}
        self._orders: dict[str, int] = {}  # of all requests that have not ended
        self._tokens: dict[int, int] = {}  # waiting, by priority
        self._num_pushed = 0

    def push(self, request: ScheduledRequest) -> None:
        self._insert(request, preempted=False)

    def requeue(self, request: ScheduledRequest) -> None:
        self._insert(request, preempted=True)

    def peek(self) -> ScheduledRequest | None:
        return self._queue.first if self._queue else None

    def lookahead(self, limit: int) -> Sequence[ScheduledRequest]:
        return list(islice(self._queue, limit))

    def start(self, request: ScheduledRequest) -> None:
        self._take(request)

    def charge(self, requests: Iterable[ScheduledRequest]) -> None:
        """The service that a request has had does not count here."""

    def end(self, request: ScheduledRequest) -> bool:
        self._orders.pop(request.request_id, None)
        return self._take(request)

    def rank(self, request: ScheduledRequest) -> Rank:
        return request.priority, request.arrival_time, self._orders[request.request_id]

    def tokens_ahead(self, request: ScheduledRequest) -> int:
        return sum(tokens for priority, tokens in self._tokens.items() if priority <= request.priority)

    def fairness(self, limit: int) -> tuple[FairnessStats, ...]:
        return ()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[ScheduledRequest]:
        return iter(self._queue)

    def _take(self, request: ScheduledRequest) -> bool:
        rank = self._ranks.pop(request.request_id, None)
        if rank is None:
            return False
        self._queue.remove(rank)
        self._tokens[request.priority] -= request.num_tokens
        if not self._tokens[request.priority]:
            del self._tokens[request.priority]
        return True

    def _insert(self, request: ScheduledRequest, *, preempted: bool) -> None:
        self._num_pushed += 1
        order = self._orders.setdefault(request.request_id, self._num_pushed)
        rank = (request.priority, 0 if preempted else 1, request.arrival_time, order)
        self._ranks[request.request_id] = rank
        self._queue.add(rank, request)
        self._tokens[request.priority] = self._tokens.get(request.priority, 0) + request.num_tokens
