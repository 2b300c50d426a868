"""`Engine`: the loop that turns requests into tokens, and the only writer of requests, scheduler and cache.

Commands come in through the inbox. After each step, its deltas go out, and one immutable snapshot for every reader of statistics.
`run` is the body of the engine thread; a caller without a thread uses `load`, `add` and `step`. Nothing here knows about asyncio,
prompts as text, or HTTP.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from queue import Empty, SimpleQueue

from inference_server.core.clock import Clock
from inference_server.core.errors import EngineDeadError, ModelLoadError, RequestAbortedError
from inference_server.core.options import EngineOptions
from inference_server.core.outputs import OutputDelta
from inference_server.core.records import EngineSnapshot, RecordSink, RequestRecord
from inference_server.core.request import FinishReason, ScheduledRequest
from inference_server.engine.commands import Abort, Add, Command, Inspect, Stop
from inference_server.engine.loaded_model import LoadedModel
from inference_server.engine.open_requests import OpenRequests
from inference_server.engine.outbox import Outbox
from inference_server.engine.output_processor import OutputProcessor
from inference_server.engine.step_pace import StepPace
from inference_server.engine.step_pipeline import StepPipeline
from inference_server.scheduler.interface import SchedulerInterface

MAX_WAIT_S = 86_400.0  # with no deadline or a far one: a queue refuses a wait that the platform's clock cannot express

logger = logging.getLogger(__name__)

Deltas = dict[str, OutputDelta]


class EngineState(StrEnum):
    """DRAINING concerns admission alone: `AsyncEngine` reports it, while the engine itself works on as in READY."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    DEAD = "dead"


class Engine:
    """Any thread may read the public attributes. The engine thread replaces them, and never changes what they refer to.

    model: None until loaded. load_error: the one line that says why loading failed. last_step_time: end of the latest step.
    num_tokens_under_way: tokens of the steps that are launched and not collected.
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
        self.num_tokens_under_way = 0
        self._pace = StepPace()
        self._load = load
        self._options = options
        self._sinks = (*sinks, self._pace)
        self._clock = clock
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        self._idle = True
        self._stopping = False
        self._num_kept = 0  # steps that this step leaves in flight
        self._outbox = Outbox()
        self._ready: Deltas = {}  # deltas to hand over
        # These exist once `load` has returned.
        self._scheduler: SchedulerInterface
        self._open: OpenRequests
        self._pipeline: StepPipeline
        self._depth: int

    def add(self, request: ScheduledRequest, *children: ScheduledRequest) -> None:
        """Queue a request, and others with the same prompt that start on its KV. This and the next three methods are for any thread.

        The engine sets the deadlines of the requests, by the options and their arrival.
        """
        self._inbox.put(Add(request, children))

    def abort(self, request_id: str) -> None:
        """End a request at the next step boundary, whatever its state. Idempotent."""
        self._inbox.put(Abort(request_id))

    def inspect(self, reply: Callable[[tuple[RequestRecord, ...]], None]) -> None:
        """Call `reply` with the records so far of the open requests, on the engine thread at the next step boundary."""
        self._inbox.put(Inspect(reply))

    def stop(self) -> None:
        """End every request and the thread. Requests that are added later are ignored."""
        self._inbox.put(Stop())

    @property
    def stall_after_s(self) -> float:
        """How many seconds the engine may take to end its next step, given the tokens under way. For any thread."""
        return self._options.stall_after_s + self._pace.allowance_s(self.num_tokens_under_way)

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do, for callers without a thread."""
        return bool(self._open or self._pipeline or not self._inbox.empty())

    def run(self, hand_over: Callable[[Mapping[str, OutputDelta]], None]) -> None:
        """Load, then step until stopped, handing over after each step. Never raises: `state` says how it ended, STOPPED or DEAD."""
        try:
            self.load()
            while not self._stopping:
                self._wait_for_work()
                self._begin_step()
                self._pass_on(hand_over)  # the deltas of the step before: the event loop reads them while the device is busy with this step
                self._ready = self._end_step()
                if not self._pipeline:
                    self._pass_on(hand_over)
            self.state = EngineState.STOPPED
        except BaseException as error:  # a panic in a native library is no Exception, and this is the end of the thread
            self.state = EngineState.DEAD
            self._report_death(error)
            if self.model is not None:
                self._end_all_after_death()
                self._pass_on(hand_over)
                self._ready = self._outbox.take(self._clock(), flush=True)
        finally:
            self._pass_on(hand_over)
            self._close()

    def load(self) -> LoadedModel:
        """Load the model on the calling thread. Raises whatever loading raises."""
        try:
            model = self._load()
        except Exception as error:
            self.load_error = str(error) if isinstance(error, ModelLoadError) else f"loading the model failed: {error!r}"
            raise
        processor = OutputProcessor(model.tokenizer, model.dialect)
        self._scheduler = model.scheduler
        self._open = OpenRequests(model.scheduler, processor, self._outbox, self._options, self._sinks)
        self._pipeline = StepPipeline(model, processor, self._open, self._outbox, self._sinks, self._clock)
        self._depth = 1 if model.spec.supports_overlap else 0
        self._publish()
        self.model = model
        self.state = EngineState.READY
        return model

    def step(self) -> Deltas:
        """One iteration: take commands, launch the next step, collect the oldest. Returns the deltas by request id.

        With overlap one step stays in flight, so that the device computes it while the host schedules and makes text. The snapshot is
        published before the deltas are handed over, so whoever sees a terminal delta also sees the blocks freed.
        """
        self._begin_step()
        return self._end_step()

    def _begin_step(self) -> None:
        now = self._clock()
        while not (self._inbox.empty() or self._stopping):
            self._apply(self._inbox.get())
        self._open.expire(now)
        plan = self._pipeline.schedule(now)
        self.num_tokens_under_way = self._pipeline.num_tokens + (0 if plan is None else plan.num_tokens)
        if plan is not None:
            self._pipeline.launch(plan)
        was_idle, self._idle = self._idle, plan is None and not self._pipeline
        if self._options.check_integrity and self._idle and not was_idle:
            self._scheduler.check_integrity(self._open)
        self._num_kept = 0 if plan is None else self._depth

    def _end_step(self) -> Deltas:
        collected = self._pipeline.collect() if len(self._pipeline) > self._num_kept else None
        self._publish()
        if collected is not None:
            self._pipeline.record(collected, self.snapshot)
        return self._outbox.take(self._clock(), flush=self._idle)

    def _pass_on(self, hand_over: Callable[[Mapping[str, OutputDelta]], None]) -> None:
        ready, self._ready = self._ready, {}
        hand_over(ready)

    def _wait_for_work(self) -> None:
        """With nothing to compute, block until a command arrives or a deadline is due."""
        if not self._idle:
            return
        due = self._open.next_deadline
        try:
            self._apply(self._inbox.get(timeout=min(max(0.0, due - self._clock()), MAX_WAIT_S)))
        except Empty:
            return

    def _apply(self, command: Command) -> None:
        now = self._clock()
        match command:
            case Add(request, children):
                self._open.add(request, now)
                for child in children:
                    self._open.add(child, now, parent=request)
            case Abort(request_id):
                self._open.end(request_id, FinishReason.ABORT, now, RequestAbortedError("the request was cancelled"))
            case Inspect(reply):
                reply(self._open.records(now))
            case Stop():
                self._stopping = True
                self._open.end_all(FinishReason.ABORT, now, lambda: RequestAbortedError("the server is shutting down"))

    def _publish(self) -> None:
        self.last_step_time = now = self._clock()
        stats, cache = self._scheduler.scheduler_stats(), self._scheduler.cache_stats()
        self.snapshot = EngineSnapshot(self._pipeline.step_id, now, stats, cache)

    def _report_death(self, error: BaseException) -> None:
        if isinstance(error, ModelLoadError):
            logger.error("%s", error)
        else:
            logger.error("%s", self.load_error or "the engine thread has failed", exc_info=error)

    def _end_all_after_death(self) -> None:
        """End all requests. What has failed may fail again here; streams that this leaves open end with the thread."""
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
