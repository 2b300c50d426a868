"""One run of a simulated fleet: the real router, policy and index, replicas that are cost models, and a clock that jumps."""

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import fmean

from fleet_model import Job, SimReplica, StepCost
from fleet_workload import Session, Workload

from control_plane.fleet_router import FleetRouter


@dataclass(frozen=True, slots=True)
class FleetShape:
    """report_s: time between two reports of a replica. fail_every_s: time between two deaths in the fleet; 0 for none. restart_s: time
    until another replica takes the place of a dead one.

    front_s: samples of the seconds that the way to the replica and the first token's way back take together; each request draws one.
    """

    replicas: int
    cost: StepCost
    cache_chunks: int = 4096
    report_s: float = 1.0
    fail_every_s: float = 0.0
    restart_s: float = 20.0
    front_s: Sequence[float] = (0.0,)


@dataclass(slots=True)
class Outcome:
    """ttft: in seconds, of all requests that got a token. imbalance: the busiest replica's tokens in flight over the mean of all, sampled
    once a second.

    broken: requests that had a token when their replica died. retried: those that had none, and ran elsewhere.
    """

    hit_tokens: int = 0
    prompt_tokens: int = 0
    requests: int = 0
    broken: int = 0
    retried: int = 0
    output_tokens: int = 0
    ttft: list[float] = field(default_factory=list)
    imbalance: list[float] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / max(1, self.prompt_tokens)

    def ttft_at(self, share: float) -> float:
        ordered = sorted(self.ttft)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")

    @property
    def mean_imbalance(self) -> float:
        return fmean(self.imbalance) if self.imbalance else float("nan")


class FleetRun:
    """warmup_s: requests that end before it are not counted."""

    def __init__(self, shape: FleetShape, router: FleetRouter, workload: Workload, warmup_s: float) -> None:
        self.outcome = Outcome()
        self.replicas: dict[str, SimReplica] = {}
        self._shape = shape
        self._router = router
        self._workload = workload
        self._sessions = workload.sessions()
        self._warmup_s = warmup_s
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._births = count()
        self._random = random.Random(0)

    def run(self, seconds: float) -> Outcome:
        """Simulate `seconds` of virtual time."""
        for _ in range(self._shape.replicas):
            self._start_replica(0.0)
        self._schedule_session()
        self._every(1.0, self._sample)
        if self._shape.fail_every_s:
            self._every(self._shape.fail_every_s, self._fail)
        while self._events and self._events[0][0] <= seconds:
            time, _, callback = heapq.heappop(self._events)
            callback(time)
        return self.outcome

    def _at(self, time: float, callback: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), callback))

    def _every(self, period_s: float, callback: Callable[[float], None], start: float = 0.0) -> None:
        def again(now: float) -> None:
            callback(now)
            self._at(now + period_s, again)

        self._at(start + period_s, again)

    def _start_replica(self, now: float) -> None:
        replica = SimReplica(f"r{next(self._births)}", self._shape.cost, self._shape.cache_chunks, self._at)
        self.replicas[replica.name] = replica
        self._router.set_replicas(self.replicas)

        def report(time: float) -> None:
            if replica.alive:
                self._router.observe(replica.name, replica.report())
                self._at(time + self._shape.report_s, report)

        self._at(now + self._shape.report_s, report)

    def _schedule_session(self) -> None:
        time, session = next(self._sessions)

        def begin(now: float) -> None:
            self._ask(session, now)
            self._schedule_session()

        self._at(time, begin)

    def _ask(self, session: Session, now: float) -> None:
        key, names, output = session.turn(self._workload.shape)

        def done(job: Job, end: float) -> None:
            assert job.trip is not None, "what has ended was sent"
            self._router.ended(job.trip)
            self._count(job, end)
            if session.turns_left > 0:
                self._at(end + session.think_s(self._workload.shape), lambda later: self._ask(session, later))

        self._send(Job(key, names, output, now, self._answered, done), now)

    def _send(self, job: Job, now: float) -> None:
        replica = self._router.choose(job.key)
        job.trip = self._router.began(replica, job.key)
        arrival = now + self._random.choice(self._shape.front_s)
        self._at(arrival, partial(self._arrive, self.replicas[replica], job))

    def _arrive(self, replica: SimReplica, job: Job, now: float) -> None:
        if replica.alive:
            replica.add(job, now)
        else:
            self._send(job, now)

    def _answered(self, job: Job) -> None:
        assert job.trip is not None, "what is answered was sent"
        self._router.answered(job.trip)

    def _count(self, job: Job, end: float) -> None:
        if end < self._warmup_s or job.first_token is None:
            return
        out = self.outcome
        out.requests += 1
        out.ttft.append(job.first_token - job.arrival)
        out.hit_tokens += job.cached_tokens
        out.prompt_tokens += job.key.num_tokens
        out.output_tokens += job.output_tokens

    def _sample(self, now: float) -> None:
        if now >= self._warmup_s:
            self.outcome.imbalance.extend(self._imbalance())

    def _imbalance(self) -> Iterator[float]:
        tokens = [replica.tokens for replica in self.replicas.values()]
        if sum(tokens):
            yield max(tokens) / fmean(tokens)

    def _fail(self, now: float) -> None:
        if len(self.replicas) < 2:
            return
        replica = self.replicas.pop(next(iter(self.replicas)))
        self._router.set_replicas(self.replicas)
        self._at(now + self._shape.restart_s, self._start_replica)
        for job in replica.kill():
            if job.first_token is None and not job.retried:
                job.retried = True
                self.outcome.retried += 1
                self._send(job, now)
            else:
                self.outcome.broken += 1
