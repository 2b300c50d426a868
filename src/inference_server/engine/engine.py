"""`Engine`: the loop that turns requests into tokens, and the only writer of requests, scheduler and cache.

In come commands through the inbox; out go the deltas of a step, and one immutable snapshot a step for every reader of
statistics. `run` is the body of the engine thread; `load`, `add` and `step` serve a caller without a thread just as well.
Nothing here knows about asyncio, prompts as text, or HTTP.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from queue import Empty, SimpleQueue
from typing import Any

from inference_server.backends.base import InferenceBackend
from inference_server.core.clock import Clock
from inference_server.core.errors import EngineDeadError, ModelLoadError, RequestAbortedError, StepFailedError
from inference_server.core.options import EngineOptions
from inference_server.core.outputs import OutputDelta
from inference_server.core.plan import StepPlan
from inference_server.core.records import EngineSnapshot, RecordSink, StepRecord
from inference_server.core.request import FinishReason, ScheduledRequest
from inference_server.engine.commands import Abort, Add, Command, Stop
from inference_server.engine.loaded_model import LoadedModel
from inference_server.engine.open_requests import OpenRequests
from inference_server.engine.output_processor import OutputProcessor
from inference_server.scheduler.interface import SchedulerInterface

logger = logging.getLogger(__name__)

Deltas = dict[str, OutputDelta]


class EngineState(StrEnum):
    """DRAINING is a matter of admission: `AsyncEngine` reports it, the engine works on as in READY."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A step that has been launched and not collected. handle: the backend's own."""

    plan: StepPlan
    handle: Any
    start_time: float


class Engine:
    """The public attributes are for any thread to read; the engine thread replaces them, and never changes what they refer to.

    model: None until loaded. load_error: the one line that says why loading failed. last_step_time: end of the latest step.
    """

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        options: EngineOptions,
        sinks: Sequence[RecordSink] = (),
        clock: Clock = time.monotonic,
    ) -> None:
        self.state = EngineState.LOADING
        self.snapshot = EngineSnapshot()
        self.model: LoadedModel | None = None
        self.load_error: str | None = None
        self.last_step_time: float | None = None
        self._load = load
        self._options = options
        self._sinks = sinks
        self._clock = clock
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        self._in_flight: deque[_InFlight] = deque()
        self._idle = True
        self._stopping = False
        # These exist once `load` has returned.
        self._backend: InferenceBackend[Any]
        self._scheduler: SchedulerInterface
        self._processor: OutputProcessor
        self._open: OpenRequests
        self._depth: int

    def add(self, request: ScheduledRequest) -> None:
        """Queue a request. Its deadlines are set here, by the options and its arrival. From any thread, as the next two."""
        self._inbox.put(Add(request))

    def abort(self, request_id: str) -> None:
        """End a request at the next step boundary, whatever its state. Idempotent."""
        self._inbox.put(Abort(request_id))

    def stop(self) -> None:
        """End every request and the thread. What is added later is not looked at any more."""
        self._inbox.put(Stop())

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do, for callers without a thread."""
        return bool(self._open or self._in_flight or not self._inbox.empty())

    def run(self, hand_over: Callable[[Mapping[str, OutputDelta]], None]) -> None:
        """Load, then step until stopped, handing over after each step. Never raises: `state` says how it ended, STOPPED or DEAD."""
        try:
            self.load()
            while not self._stopping:
                self._wait_for_work()
                hand_over(self.step())
            self.state = EngineState.STOPPED
        except Exception as error:
            self.state = EngineState.DEAD
            self._report_death(error)
            if self.model is not None:
                self._end_all_after_death()
                hand_over(self._open.take())
        finally:
            self._close()

    def load(self) -> LoadedModel:
        """Load the model on the calling thread. Raises whatever loading raises."""
        try:
            model = self._load()
        except Exception as error:
            self.load_error = str(error) if isinstance(error, ModelLoadError) else f"loading the model failed: {error!r}"
            raise
        self._backend, self._scheduler = model.backend, model.scheduler
        self._processor = OutputProcessor(model.tokenizer)
        self._open = OpenRequests(model.scheduler, self._processor, self._options, self._sinks)
        self._depth = 1 if model.spec.supports_overlap else 0
        self._publish(step_id=0)
        self.model = model
        self.state = EngineState.READY
        return model

    def step(self) -> Deltas:
        """One iteration: take commands, launch the next step, collect the oldest. Returns the deltas by request id.

        With overlap one step stays in flight, so that scheduling and text run in its shadow. The snapshot is published
        before the deltas are handed over: whoever sees a terminal delta also sees the blocks freed.
        """
        now = self._clock()
        while not (self._inbox.empty() or self._stopping):
            self._apply(self._inbox.get())
        self._open.expire(now)
        plan = self._scheduler.schedule(now)
        if plan is not None:
            self._launch(plan)
        self._idle = plan is None and not self._in_flight
        if self._in_flight and (plan is None or len(self._in_flight) > self._depth):
            self._collect(self._in_flight.popleft())
        else:
            self._publish(self.snapshot.step_id)
        return self._open.take()

    def _wait_for_work(self) -> None:
        """With nothing to compute, block until a command arrives or a deadline is due."""
        if not self._idle:
            return
        due = self._open.next_deadline
        try:
            self._apply(self._inbox.get(timeout=None if due == inf else max(0.0, due - self._clock())))
        except Empty:
            return

    def _apply(self, command: Command) -> None:
        now = self._clock()
        match command:
            case Add(request):
                self._open.add(request, now)
            case Abort(request_id):
                self._open.end(request_id, FinishReason.ABORT, now, RequestAbortedError("the request was cancelled"))
            case Stop():
                self._stopping = True
                self._open.end_all(FinishReason.ABORT, now, lambda: RequestAbortedError("the server is shutting down"))

    def _launch(self, plan: StepPlan) -> None:
        start_time = self._clock()
        try:
            handle = self._backend.launch(plan)
            self._backend.sample(handle)
        except StepFailedError as error:
            self._fail(plan, error)
        else:
            self._in_flight.append(_InFlight(plan, handle, start_time))

    def _collect(self, step: _InFlight) -> None:
        try:
            result = self._backend.collect(step.handle)
        except StepFailedError as error:
            self._fail(step.plan, error)
            self._publish(step.plan.step_id)
            return
        now = self._clock()
        outputs = self._processor.process(step.plan, result, now)
        self._scheduler.update(step.plan, result, outputs.stops)
        self._open.put(outputs.deltas)
        for request_id, reason in outputs.stops.items():
            self._open.end(request_id, reason, now, outputs.deltas[request_id].error)
        before = self.snapshot.scheduler.preemptions_total
        self._publish(step.plan.step_id)
        stats = self.snapshot.scheduler
        record = StepRecord(
            step_id=step.plan.step_id,
            kind=step.plan.kind,
            start_time=step.start_time,
            end_time=now,
            num_rows=len(step.plan),
            num_tokens=step.plan.num_tokens,
            num_returned_tokens=len(outputs.deltas),
            num_waiting=stats.num_waiting,
            num_preempted=stats.preemptions_total - before,
            inter_token_s=tuple(outputs.inter_token_s),
        )
        for sink in self._sinks:
            sink.on_step(record)

    def _fail(self, plan: StepPlan, error: StepFailedError) -> None:
        """A step is lost, and its requests with it; the others go on."""
        logger.error("step %d with %d requests failed: %s", plan.step_id, len(plan), error, exc_info=error)
        now = self._clock()
        for request in plan.requests:
            self._open.end(request.request_id, FinishReason.ERROR, now, StepFailedError(error.message))

    def _publish(self, step_id: int) -> None:
        self.last_step_time = now = self._clock()
        self.snapshot = EngineSnapshot(step_id, now, self._scheduler.scheduler_stats(), self._scheduler.cache_stats())

    def _report_death(self, error: Exception) -> None:
        if isinstance(error, ModelLoadError):
            logger.error("%s", error)
        else:
            logger.error("%s", self.load_error or "the engine thread has failed", exc_info=error)

    def _end_all_after_death(self) -> None:
        """Whatever failed may fail again here; the streams that this leaves open end with the thread."""
        try:
            self._open.end_all(FinishReason.ERROR, self._clock(), lambda: EngineDeadError("the engine has failed"))
        except Exception:
            logger.exception("the requests could not be ended in order")

    def _close(self) -> None:
        if self.model is None:
            return
        try:
            self.model.backend.close()
        except Exception:
            logger.exception("the backend could not be closed")
