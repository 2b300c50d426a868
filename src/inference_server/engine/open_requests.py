"""The requests that have not ended, and the one place where a request ends.

An end frees the scheduler's resources, makes the terminal delta and writes the `RequestRecord`; it happens once, whoever asks
for it: a stop, a deadline, an abort, a failed step or a dying engine. Deadlines cost a comparison a step, not a scan.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf

from inference_server.core.errors import DeadlineExceededError, InferenceServerError, OverloadedError
from inference_server.core.options import EngineOptions
from inference_server.core.outputs import Usage
from inference_server.core.records import RecordSink, RequestRecord
from inference_server.core.request import FinishReason, RequestStatus, ScheduledRequest
from inference_server.engine.outbox import Outbox
from inference_server.engine.output_processor import OutputProcessor
from inference_server.scheduler.interface import SchedulerInterface


class OpenRequests:
    """Written by the engine thread alone."""

    def __init__(
        self,
        scheduler: SchedulerInterface,
        processor: OutputProcessor,
        outbox: Outbox,
        options: EngineOptions,
        sinks: Sequence[RecordSink],
    ) -> None:
        self._scheduler = scheduler
        self._processor = processor
        self._outbox = outbox
        self._admission_limit_s = _limit(options.admission_deadline_s)
        self._request_limit_s = _limit(options.request_deadline_s)
        self._sinks = sinks
        self._requests: dict[str, ScheduledRequest] = {}
        self._next_deadline = inf

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[ScheduledRequest]:
        return iter(self._requests.values())

    @property
    def next_deadline(self) -> float:
        """No deadline is due before this time; inf without any."""
        return self._next_deadline

    def add(self, request: ScheduledRequest, now: float, parent: ScheduledRequest | None = None) -> None:
        """Queue a request, behind its parent if it has one.

        One that the scheduler refuses, or that would wait beyond its admission deadline, ends at once.
        """
        request.admission_deadline = min(request.admission_deadline, request.arrival_time + self._admission_limit_s)
        request.deadline = min(request.deadline, request.arrival_time + self._request_limit_s)
        self._requests[request.request_id] = request
        self._processor.add(request)
        self._next_deadline = min(self._next_deadline, _due(request))
        wait_s = self._scheduler.predicted_wait_s(request)
        try:
            if now + wait_s > request.admission_deadline:
                message = f"the request would wait for about {wait_s:.0f} s; try again later"
                raise OverloadedError(message, retry_after_s=wait_s, reason="predicted_wait")
            self._scheduler.add(request, parent)
        except InferenceServerError as error:
            self.end(request.request_id, FinishReason.ERROR, now, error)

    def end(self, request_id: str, reason: FinishReason, now: float, error: InferenceServerError | None = None) -> None:
        """End a request: its terminal delta carries `error`, else `reason` and the usage. Nothing if it has ended already."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        delta = self._outbox.delta(request_id)
        self._outbox.hurry(request_id)
        if error is None:
            delta.finish_reason, delta.usage = reason, _usage(request, now)
        else:
            delta.error = error
        self._processor.remove(request_id)
        record = _record(request, reason, now, error)
        for sink in self._sinks:
            sink.on_request(record)
        self._scheduler.finish(request, reason)

    def records(self, now: float) -> tuple[RequestRecord, ...]:
        """The lives so far of the requests that have not ended, oldest first."""
        return tuple(_record(request, None, now, None) for request in self._requests.values())

    def end_all(self, reason: FinishReason, now: float, error: Callable[[], InferenceServerError]) -> None:
        for request_id in list(self._requests):
            self.end(request_id, reason, now, error())

    def expire(self, now: float) -> None:
        """End the requests whose time is up: 429 while they wait, 504 before any text, `timeout` after it."""
        if now < self._next_deadline:
            return
        for request in [request for request in self._requests.values() if now >= _due(request)]:
            self._end_late(request, now)
        self._next_deadline = min(map(_due, self._requests.values()), default=inf)

    def _end_late(self, request: ScheduledRequest, now: float) -> None:
        request_id = request.request_id
        if now < request.deadline:
            waited = f"waited {now - request.arrival_time:.0f} s without being admitted"
            late = OverloadedError(f"the request {waited}; try again later", reason="admission_deadline")
            self.end(request_id, FinishReason.TIMEOUT, now, late)
        elif not self._processor.has_text(request_id):
            silent = DeadlineExceededError(f"no output within {now - request.arrival_time:.0f} s")
            self.end(request_id, FinishReason.TIMEOUT, now, silent)
        else:
            self._processor.flush(request_id, self._outbox.delta(request_id))
            self.end(request_id, FinishReason.TIMEOUT, now)


def _limit(seconds: float | None) -> float:
    return inf if seconds is None else seconds


def _due(request: ScheduledRequest) -> float:
    """A request that was admitted once has kept its admission deadline, also when it waits again after a preemption."""
    return request.deadline if request.admitted_time is not None else min(request.admission_deadline, request.deadline)


def _usage(request: ScheduledRequest, now: float) -> Usage:
    return Usage(
        prompt_tokens=request.num_prompt_tokens,
        completion_tokens=min(request.num_output_tokens, request.sampling.max_tokens),
        cached_tokens=request.num_cached_tokens,
        ttft_s=None if request.first_token_time is None else request.first_token_time - request.arrival_time,
        total_s=now - request.arrival_time,
        reasoning_tokens=request.num_reasoning_tokens,
    )


def _record(request: ScheduledRequest, reason: FinishReason | None, now: float, error: InferenceServerError | None) -> RequestRecord:
    return RequestRecord(
        request_id=request.request_id,
        origin=request.origin,
        finish_reason=reason,
        error_code=None if error is None else error.code,
        prompt_tokens=request.num_prompt_tokens,
        cached_tokens=request.num_cached_tokens,
        output_tokens=request.num_output_tokens,
        num_preemptions=request.num_preemptions,
        arrival_time=request.arrival_time,
        admitted_time=request.admitted_time,
        first_token_time=request.first_token_time,
        end_time=now,
        last_token_time=request.last_token_time,
        status=RequestStatus.FINISHED if reason else request.status,
        num_computed_tokens=request.num_computed_tokens,
        events=tuple(request.history.events),
        events_dropped=request.history.num_dropped,
        is_chat=request.answer is not None,
        reasoning_tokens=request.num_reasoning_tokens,
        sampling=request.sampling,
    )
