"""Hops 3 to 6 of a request: a plan goes from the scheduler to the backend, its tokens to the output processor, both back to the scheduler.

Steps are collected in the order of their launch. If a grammar decides which tokens may come, sampling waits for the tokens of the step
before; the forward does not wait. A `StepFailedError` ends the requests of its step and nothing else; any other exception passes through
and ends the engine.
"""

import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inference_server.core.clock import Clock
from inference_server.core.errors import StepFailedError
from inference_server.core.phases import Phase
from inference_server.core.plan import StepPlan, StepResult
from inference_server.core.records import EngineSnapshot, RecordSink, StepRecord
from inference_server.core.request import FinishReason
from inference_server.engine.loaded_model import LoadedModel
from inference_server.engine.open_requests import OpenRequests
from inference_server.engine.outbox import Outbox
from inference_server.engine.output_processor import OutputProcessor, StepOutputs
from inference_server.engine.step_times import StepTimes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A step that has been launched and not collected. handle: what the backend calls it. masked: whether a grammar constrains a row."""

    plan: StepPlan
    handle: Any
    start_time: float
    masked: bool
    times: StepTimes


@dataclass(frozen=True, slots=True)
class CollectedStep:
    """A step whose tokens have been given out, for `StepPipeline.record`. end_time: when the tokens had come to the host."""

    plan: StepPlan
    start_time: float
    end_time: float
    times: StepTimes
    outputs: StepOutputs
    replayed: bool


class StepPipeline:
    """The steps in flight, oldest first; `len` is their number. step_id: the id of the latest step that was collected or has failed."""

    def __init__(
        self,
        model: LoadedModel,
        processor: OutputProcessor,
        requests: OpenRequests,
        outbox: Outbox,
        sinks: Sequence[RecordSink],
        clock: Clock,
    ) -> None:
        self.step_id = 0
        self._backend = model.backend
        self._scheduler = model.scheduler
        self._processor = processor
        self._requests = requests
        self._outbox = outbox
        self._sinks = sinks
        self._clock = clock
        self._ranges = model.ranges
        self._times: StepTimes
        self._next_step_id = 1
        self._in_flight: deque[_InFlight] = deque()
        self._last_end = 0.0

    def __len__(self) -> int:
        return len(self._in_flight)

    @property
    def num_tokens(self) -> int:
        """The tokens of all steps in flight."""
        return sum(step.plan.num_tokens for step in self._in_flight)

    def schedule(self, now: float) -> StepPlan | None:
        """The scheduler's next step, to be launched at once; None if there is nothing to compute."""
        self._times = StepTimes(self._next_step_id, self._clock, self._ranges)
        with self._times.phase(Phase.SCHEDULE):
            return self._scheduler.schedule(now)

    def launch(self, plan: StepPlan) -> None:
        start_time, times = self._clock(), self._times
        self._next_step_id = plan.step_id + 1
        try:
            with times.phase(Phase.LAUNCH):
                handle = self._backend.launch(plan)
            step = _InFlight(plan, handle, start_time, self._processor.constrains(plan), times)
            if not (step.masked and self._in_flight):
                self._sample(step)
        except StepFailedError as error:
            self._fail(plan, error)
        else:
            self._in_flight.append(step)

    def collect(self) -> CollectedStep | None:
        """Wait for the oldest step and give out its tokens, then sample the next one if it waited for them. None if the oldest failed."""
        collected = self._collect(self._in_flight.popleft())
        if self._in_flight and self._in_flight[0].masked:
            try:
                self._sample(self._in_flight[0])
            except StepFailedError as error:
                self._fail(self._in_flight.popleft().plan, error)
        return collected

    def _sample(self, step: _InFlight) -> None:
        with step.times.phase(Phase.SAMPLE):
            self._backend.sample(step.handle, self._processor.masks(step.plan) if step.masked else None)

    def _collect(self, step: _InFlight) -> CollectedStep | None:
        self._scheduler.prepare(step.plan)
        try:
            with step.times.phase(Phase.COLLECT):
                result = self._backend.collect(step.handle)
        except StepFailedError as error:
            self._fail(step.plan, error)
            return None
        now = self._clock()
        with step.times.phase(Phase.OUTPUT):
            outputs = self._give_out(step, result, now)
        self.step_id = step.plan.step_id
        return CollectedStep(step.plan, step.start_time, now, step.times, outputs, result.replayed)

    def _give_out(self, step: _InFlight, result: StepResult, now: float) -> StepOutputs:
        result.elapsed_s = now - max(step.start_time, self._last_end)
        self._last_end = now
        for row in step.plan.prefill_rows:
            step.plan.requests[row].history.prefill(now - result.elapsed_s, now, step.plan.num_new_tokens[row], len(step.plan))
        outputs = self._processor.process(step.plan, result, now, self._outbox)
        self._scheduler.update(step.plan, result, outputs.stops)
        for request_id, reason in outputs.stops.items():
            self._requests.end(request_id, reason, now, outputs.errors.get(request_id))
        return outputs

    def _fail(self, plan: StepPlan, error: StepFailedError) -> None:
        logger.error("step %d with %d requests failed: %s", plan.step_id, len(plan), error, exc_info=error)
        self.step_id = plan.step_id
        now = self._clock()
        for request in plan.requests:
            self._requests.end(request.request_id, FinishReason.ERROR, now, StepFailedError(error.message))

    def record(self, step: CollectedStep, snapshot: EngineSnapshot) -> None:
        """Tell the sinks of a collected step. snapshot: taken after the step."""
        plan, outputs, stats = step.plan, step.outputs, snapshot.scheduler
        record = StepRecord(
            step_id=plan.step_id,
            kind=plan.kind,
            start_time=step.start_time,
            end_time=step.end_time,
            num_rows=len(plan),
            num_tokens=plan.num_tokens,
            num_returned_tokens=outputs.num_tokens,
            num_waiting=stats.num_waiting,
            inter_token_s=Counter(outputs.inter_token_s),
            first_token_s=tuple(outputs.first_token_s),
            num_prefill_chunks=len(plan.prefill_rows),
            num_prefill_tokens=sum(plan.num_new_tokens[plan.num_decodes :]),
            replayed=step.replayed,
            num_active=stats.num_active,
            num_used_blocks=snapshot.cache.used_blocks,
            plan=plan,
            phases=tuple(step.times.done),
            decisions=self._scheduler.take_decisions(),
        )
        for sink in self._sinks:
            sink.on_step(record)
