"""The one instrumentation of the engine: a `StepRecord` a step, a `RequestRecord` an end, and immutable snapshots for readers.

Metrics, telemetry, timeline and traces are sinks of these; nothing else measures the engine. Times are monotonic seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from inference_server.core.decisions import Decision
from inference_server.core.phases import PhaseTime
from inference_server.core.plan import StepKind, StepPlan
from inference_server.core.request import FinishReason, RequestOrigin, RequestStatus
from inference_server.core.request_history import RequestEvent
from inference_server.core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One collected step.

    inter_token_s: of the rows that returned a later token, how many by the seconds since the token before: rows that decode together
    wait equally long. first_token_s: of those that returned their first, seconds since the request's arrival.
    replayed: whether the forward was a captured CUDA graph. num_active, num_used_blocks: requests that hold KV, and the blocks they
    hold, after the step. plan: its lists do not change any more, the requests in it do. decisions: those since the record before, so
    with a step in flight also those for the next one.
    """

    step_id: int
    kind: StepKind
    start_time: float
    end_time: float
    num_rows: int
    num_tokens: int
    num_returned_tokens: int
    num_waiting: int
    inter_token_s: Mapping[float, int] = field(default_factory=dict)
    first_token_s: tuple[float, ...] = ()
    num_prefill_chunks: int = 0
    num_prefill_tokens: int = 0
    replayed: bool = False
    num_active: int = 0
    num_used_blocks: int = 0
    plan: StepPlan | None = None
    phases: tuple[PhaseTime, ...] = ()
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """The life of one request, written when it ends; of one that is open, its life so far.

    finish_reason: None while it is open, and end_time is then the time of writing. num_computed_tokens: of its KV. events_dropped:
    how many more events there were than a history keeps. is_chat: its prompt was one.
    """

    request_id: str
    origin: RequestOrigin
    finish_reason: FinishReason | None
    error_code: str | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    num_preemptions: int
    arrival_time: float
    admitted_time: float | None
    first_token_time: float | None
    end_time: float
    last_token_time: float | None = None
    status: RequestStatus = RequestStatus.FINISHED
    num_computed_tokens: int = 0
    events: tuple[RequestEvent, ...] = ()
    events_dropped: int = 0
    is_chat: bool = False
    reasoning_tokens: int = 0
    sampling: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True, slots=True)
class FairnessStats:
    """What one fairness key has had. served: weighted tokens, plus what lifting after an absence added to them."""

    key: str
    served: int
    num_waiting: int
    num_open: int


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A snapshot of the scheduler, taken at a step boundary.

    waiting_by_reason: every waiting request, by what holds it. drain_rate: tokens a second that leave the queue while there is
    one, 0 before that is known. fairness: the keys that have had the most service, a few steps old at times.
    """

    num_waiting: int = 0
    num_prefilling: int = 0
    num_running: int = 0
    waiting_by_reason: dict[str, int] = field(default_factory=dict)
    admitted_total: int = 0
    preemptions_total: int = 0
    waiting_tokens: int = 0
    active_tokens: int = 0
    drain_rate: float = 0.0
    fairness: tuple[FairnessStats, ...] = ()

    @property
    def num_active(self) -> int:
        """Rows that hold KV blocks."""
        return self.num_prefilling + self.num_running


@dataclass(frozen=True, slots=True)
class CacheStats:
    """A snapshot of the block pool, in bytes and in blocks of the first layer group.

    used: referenced by running requests; pinned: those of them that the prefix cache has too; cached: reusable, unreferenced;
    free: neither. hit and miss: prompt tokens that the prefix cache had, or had not, each counted once, at first admission.
    """

    total_blocks: int = 0
    used_blocks: int = 0
    cached_blocks: int = 0
    free_blocks: int = 0
    total_bytes: int = 0
    used_bytes: int = 0
    cached_bytes: int = 0
    hit_tokens: int = 0
    miss_tokens: int = 0
    evicted_blocks: int = 0
    pinned_blocks: int = 0

    @property
    def utilization(self) -> float:
        """The share of the blocks that is used, from 0 to 1."""
        return self.used_blocks / self.total_blocks if self.total_blocks else 0.0


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """What the engine publishes after every step, read by other threads without locks."""

    step_id: int = 0
    time: float = 0.0
    scheduler: SchedulerStats = field(default_factory=SchedulerStats)
    cache: CacheStats = field(default_factory=CacheStats)


class RecordSink(Protocol):
    """A reader of the engine's records. Called on the engine thread: must be quick and must not raise."""

    def on_step(self, record: StepRecord) -> None: ...

    def on_request(self, record: RequestRecord) -> None: ...
