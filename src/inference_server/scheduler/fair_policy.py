"""`FairPolicy`: each fairness key gets an equal share of the service while it has requests waiting.

The virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): each key has a counter of
the service it has had, and the key that had the least is served next. Fairness holds among requests of one priority; who may
ask for which priority is not decided here.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import chain, islice, zip_longest

from inference_server.core.records import FairnessStats
from inference_server.core.request import ScheduledRequest
from inference_server.scheduler.ranked_queue import Rank, RankedQueue

_FAIRNESS_EVERY = 32


@dataclass(slots=True, eq=False)
class _Share:
    """One fairness key. counter: weighted tokens served, plus what lifting has added; it never falls.

    priority, rank: where the key stands in line while it waits. priority: that of its first request. rank: the counter when it was put
    there, and a number that orders equals. num_open: its requests that have not ended. idle_since: when the last of them ended.
    """

    key: str
    counter: int = 0
    queue: RankedQueue[ScheduledRequest] = field(default_factory=RankedQueue)
    priority: int = 0
    rank: tuple[int, int] = (0, 0)
    num_open: int = 0
    waiting_tokens: int = 0
    idle_since: float = 0.0


class FairPolicy:
    """Virtual token counters behind `SchedulingPolicy`. Keys with equal counters, and requests of one key, go first come, first served.

    A prompt is charged when it is admitted, without the tokens that the prefix cache had (the paper charges all of it; a hit costs
    the server nothing), and an output token when it is returned. A key that comes back is lifted to the least counter among the
    keys that wait, so that time away earns nothing; when none waits, to the counter of the key that waited last. While two keys both
    wait, their service differs by at most 2 * max(input_weight * longest prompt, output_weight * tokens that fit the batch).

    Keys with open requests are kept. Of the others, the latest max_idle are kept, each for idle_limit_s. Time is told by the arrivals of
    requests.
    """

    def __init__(self, *, input_weight: int = 1, output_weight: int = 2, idle_limit_s: float = 600.0, max_idle: int = 1024) -> None:
        self._input_weight = input_weight
        self._output_weight = output_weight
        self._idle_limit_s = idle_limit_s
        self._max_idle = max_idle
        self._shares: dict[str, _Share] = {}
        self._idle: dict[str, _Share] = {}  # in the order of becoming idle; these are in _shares too
        self._lines: dict[int, RankedQueue[_Share]] = {}  # the keys that wait, by the priority of their first request
        self._preempted: RankedQueue[ScheduledRequest] = RankedQueue()
        self._ranks: dict[str, Rank] = {}  # places of the waiting requests in their queue
        self._started: dict[str, Rank] = {}  # ranks of the requests that have been admitted
        self._last_waiting = _Share("")
        self._num_pushed = self._num_started = self._num_joins = 0
        self._now = 0.0
        self._fairness: tuple[FairnessStats, ...] = ()
        self._num_asked = 0

    def push(self, request: ScheduledRequest) -> None:
        self._now = max(self._now, request.arrival_time)
        self._expire()
        share = self._shares.setdefault(request.origin.fairness_key, _Share(request.origin.fairness_key))
        self._idle.pop(share.key, None)
        share.num_open += 1
        self._num_pushed += 1
        self._ranks[request.request_id] = rank = (request.priority, request.arrival_time, self._num_pushed)
        stands = bool(share.queue) and share.priority <= request.priority
        if not share.queue:
            share.counter = max(share.counter, self._least_counter())
        elif not stands:
            self._leave_line(share)
        share.queue.add(rank, request)
        share.waiting_tokens += request.num_tokens
        if not stands:
            self._join_line(share)

    def requeue(self, request: ScheduledRequest) -> None:
        self._ranks[request.request_id] = rank = self.rank(request)
        self._preempted.add(rank, request)

    def peek(self) -> ScheduledRequest | None:
        first = self._first_share()
        if self._preempted and (first is None or self._preempted.first.priority <= first.priority):
            return self._preempted.first
        return first.queue.first if first else None

    def lookahead(self, limit: int) -> Sequence[ScheduledRequest]:
        """One request of each key in turn, so that many of one key that do not fit do not hide those of the others."""
        shares = list(islice(chain.from_iterable(self._lines[priority] for priority in sorted(self._lines)), limit))
        turns = zip_longest(*(share.queue for share in shares))
        found = (request for turn in turns for request in turn if request is not None)
        return list(islice(chain(self._preempted, found), limit))

    def start(self, request: ScheduledRequest) -> None:
        share = self._shares[request.origin.fairness_key]
        if request.num_preemptions == 0:
            self._num_started += 1
            self._started[request.request_id] = request.priority, share.counter, self._num_started
            share.counter += self._input_weight * (request.num_prompt_tokens - request.num_cached_tokens)
        self._take(request, share)

    def charge(self, requests: Iterable[ScheduledRequest]) -> None:
        shares, weight = self._shares, self._output_weight
        for request in requests:
            shares[request.origin.fairness_key].counter += weight

    def end(self, request: ScheduledRequest) -> bool:
        waiting = request.request_id in self._ranks
        started = self._started.pop(request.request_id, None) is not None
        if not (waiting or started):
            return False
        share = self._shares[request.origin.fairness_key]
        if waiting:
            self._take(request, share)
        share.num_open -= 1
        if not share.num_open:
            share.idle_since = self._now
            self._idle[share.key] = share
        return waiting

    def rank(self, request: ScheduledRequest) -> Rank:
        """By the key's counter before the request was first admitted: of two keys, the one that had been served more gives way."""
        return self._started[request.request_id]

    def tokens_ahead(self, request: ScheduledRequest) -> int:
        """An estimate: while the key's own queue is served, every other key that waits is served about as much."""
        share = self._shares.get(request.origin.fairness_key)
        num_keys = sum(len(line) for priority, line in self._lines.items() if priority <= request.priority)
        return share.waiting_tokens * num_keys if share else 0

    def fairness(self, limit: int) -> tuple[FairnessStats, ...]:
        """Ranking the keys takes as long as the rest of a snapshot, so it is done now and then, and when all requests have ended."""
        self._num_asked += 1
        if self._num_asked % _FAIRNESS_EVERY == 1 or not (self._ranks or self._started):
            top = nlargest(limit, self._shares.values(), key=lambda share: share.counter)
            self._fairness = tuple(FairnessStats(share.key, share.counter, len(share.queue), share.num_open) for share in top)
        return self._fairness

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[ScheduledRequest]:
        shares = chain.from_iterable(self._lines[priority] for priority in sorted(self._lines))
        return chain(self._preempted, chain.from_iterable(share.queue for share in shares))

    def _first_share(self) -> _Share | None:
        return self._least_served(min(self._lines)) if self._lines else None

    def _least_counter(self) -> int:
        """The least counter among the keys that wait; where none waits, that of the key that waited last."""
        return min((self._least_served(priority).counter for priority in self._lines), default=self._last_waiting.counter)

    def _least_served(self, priority: int) -> _Share:
        """The waiting key of that priority with the least counter.

        Counters only grow, so no rank is above its key's counter: where the first key's rank equals its counter, no other has less.
        """
        line = self._lines[priority]
        while (share := line.first).rank[0] != share.counter:
            line.remove(share.rank)
            self._num_joins += 1
            share.rank = share.counter, self._num_joins
            line.add(share.rank, share)
        return share

    def _take(self, request: ScheduledRequest, share: _Share) -> None:
        rank = self._ranks.pop(request.request_id)
        if request.num_preemptions:
            self._preempted.remove(rank)
            return
        self._leave_line(share)
        share.queue.remove(rank)
        share.waiting_tokens -= request.num_tokens
        if share.queue:
            self._join_line(share)
        else:
            self._last_waiting = share

    def _join_line(self, share: _Share) -> None:
        self._num_joins += 1
        share.rank = share.counter, self._num_joins
        share.priority = share.queue.first.priority
        self._lines.setdefault(share.priority, RankedQueue()).add(share.rank, share)

    def _leave_line(self, share: _Share) -> None:
        line = self._lines[share.priority]
        line.remove(share.rank)
        if not line:
            del self._lines[share.priority]

    def _expire(self) -> None:
        while self._idle:
            share = next(iter(self._idle.values()))
            if len(self._idle) <= self._max_idle and self._now - share.idle_since <= self._idle_limit_s:
                return
            del self._idle[share.key], self._shares[share.key]
