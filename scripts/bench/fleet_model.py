"""A replica as a cost model on a virtual clock: steps that take time by their rows and prompt tokens, and an LRU cache of prefixes.

It decides nothing about routing. The scheduler's own `ChunkBudget` and `shape_prefill` decide how much of a prompt a step computes. It
leaves out windows, preemption and the scheduler's fairness, and a step's time depends on nothing but what `StepCost` says.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from control_plane.fleet_router import Trip
from control_plane.replica_report import ReplicaReport
from control_plane.routing_key import RoutingKey
from inference_server.core.chunk_hash import ChunkHasher
from inference_server.core.options import SLOW_CHUNK_TOKENS, PrefillMode, SchedulerOptions
from inference_server.core.prefix_journal import PrefixJournal
from inference_server.scheduler.chunk_budget import ChunkBudget
from inference_server.scheduler.prefill_shape import shape_prefill

MEASURED_STEPS = 9  # equal steps in a row; `ChunkBudget` would not keep more of them
NO_HASHER = ChunkHasher(b"", 1)  # not used, since the names come from the workload


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: `base_s`, and what each decoding row and each prompt token adds. The limits are those of `SchedulerOptions`."""

    base_s: float = 0.004
    row_s: float = 0.00002
    token_s: float = 0.00001
    max_rows: int = 256
    max_tokens: int = 2048
    chunk: int = SLOW_CHUNK_TOKENS
    unnoticed_s: float = SchedulerOptions().unnoticed_itl_ms / 1000

    def seconds(self, rows: int, tokens: int) -> float:
        return self.base_s + self.row_s * rows + self.token_s * tokens


@dataclass(slots=True, eq=False)
class Job:
    """One request. names: one for each chunk of prompt and answer. left: tokens of the prompt that are still to be computed."""

    key: RoutingKey
    names: Sequence[int]
    output_tokens: int
    arrival: float
    answered: Callable[["Job"], None]
    done: Callable[["Job", float], None]
    trip: Trip | None = None
    cached_tokens: int = 0
    left: int = 0
    first_token: float | None = None
    retried: bool = False

    @property
    def tokens(self) -> int:
        return self.key.num_tokens + self.output_tokens


@dataclass(slots=True)
class Batch:
    """Steps in a row with the same rows. start: when the first begins. seconds: of each. steps: how many; one if there is any prompt.

    prefill: the prompts, and how many tokens of each are computed.
    """

    start: float
    seconds: float
    steps: int
    rows: int
    prefill: list[tuple[Job, int]] = field(default_factory=list)


class SimReplica:
    """One replica. schedule(time, callback): how the clock is asked to call back."""

    def __init__(self, name: str, cost: StepCost, cache_chunks: int, schedule: Callable[[float, Callable[[float], None]], None]) -> None:
        self.name = name
        self.alive = True
        self.hit_tokens = self.miss_tokens = 0
        self.tokens = 0  # of all open requests
        self.open: dict[Job, None] = {}
        self._cost = cost
        self._cache_chunks = cache_chunks
        self._schedule = schedule
        self._journal = PrefixJournal(NO_HASHER)
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._waiting: deque[Job] = deque()
        self._prefilling: deque[Job] = deque()
        self._budget = ChunkBudget(alternating=False, unnoticed_s=cost.unnoticed_s)
        self._decoding: list[tuple[int, int, Job]] = []  # a heap, ordered by the step that brings the last token
        self._steps = 0
        self._num_jobs = 0
        self._batch: Batch | None = None

    def add(self, job: Job, now: float) -> None:
        self.open[job] = None
        self.tokens += job.key.num_tokens
        self._waiting.append(job)
        if self._batch is None:
            self._launch(now)
        elif self._batch.steps > 1:  # the job joins at the next step
            done = int((now - self._batch.start) / self._batch.seconds) + 1
            if done < self._batch.steps:
                self._run(replace(self._batch, steps=done))

    def kill(self) -> list[Job]:
        """Die. Returns the jobs that were open."""
        self.alive, self._batch = False, None
        return list(self.open)

    def report(self) -> ReplicaReport:
        end, changes = self._journal.latest()
        waiting_tokens = sum(job.key.num_tokens for job in self._waiting)
        return ReplicaReport(self.tokens, waiting_tokens, len(self._waiting), end=end, changes=changes)

    def _launch(self, now: float) -> None:
        rows = len(self._decoding)
        while self._waiting and rows + len(self._prefilling) < self._cost.max_rows:
            self._prefilling.append(self._admit(self._waiting.popleft()))
        if not (rows or self._prefilling):
            self._batch = None
            return
        prefill = self._chunks(rows)
        seconds = self._cost.seconds(rows, sum(count for _, count in prefill))
        self._run(Batch(now, seconds, 1 if self._prefilling else self._decoding[0][0] - self._steps, rows, prefill))

    def _chunks(self, rows: int) -> list[tuple[Job, int]]:
        """The prompts in the next step, beside `rows` decoding rows, and how many tokens of each it computes."""
        if not self._prefilling:
            return []
        budget, limit = self._cost.max_tokens - rows, self._budget.limit(rows)
        left = [job.left for job in self._prefilling]
        shares = shape_prefill(PrefillMode.MIXED, left, budget if limit is None else min(budget, limit), self._cost.chunk)
        return [(job, count) for job, count in zip(self._prefilling, shares, strict=True) if count]

    def _run(self, batch: Batch) -> None:
        self._batch = batch
        self._schedule(batch.start + batch.steps * batch.seconds, lambda now: self._end(batch, now))

    def _end(self, batch: Batch, now: float) -> None:
        if batch is not self._batch:  # it was cut short, or the replica is dead
            return
        self._steps += batch.steps
        for _ in range(min(batch.steps, MEASURED_STEPS)):
            self._budget.observe(batch.rows, sum(count for _, count in batch.prefill), batch.seconds)
        for job, count in batch.prefill:
            job.left -= count
            if not job.left:
                self._prefilling.remove(job)
                job.first_token = now
                job.answered(job)
                self._cache(job.key.names)
                self._num_jobs += 1
                heapq.heappush(self._decoding, (self._steps + job.output_tokens - 1, self._num_jobs, job))
        while self._decoding and self._decoding[0][0] <= self._steps:
            job = heapq.heappop(self._decoding)[2]
            del self.open[job]
            self.tokens -= job.key.num_tokens
            self._cache(job.names)
            job.done(job, now)
        self._launch(now)

    def _admit(self, job: Job) -> Job:
        depth = next((depth for depth, name in enumerate(job.key.names) if name not in self._cached), len(job.key.names))
        self._touch(job.key.names[:depth])
        job.cached_tokens = min(depth * job.key.chunk_tokens, job.key.num_tokens - 1)
        job.left = job.key.num_tokens - job.cached_tokens
        self.hit_tokens += job.cached_tokens
        self.miss_tokens += job.left
        return job

    def _touch(self, names: Sequence[int]) -> None:
        """Mark the chunks as used. Children are then evicted before their parents, as the leaves of a tree are."""
        for name in reversed(names):
            self._cached.move_to_end(name)

    def _cache(self, names: Sequence[int]) -> None:
        for name in reversed(names):
            if name not in self._cached:
                self._journal.added(name)
            self._cached[name] = None
            self._cached.move_to_end(name)
        while len(self._cached) > self._cache_chunks:
            self._journal.removed(self._cached.popitem(last=False)[0])
