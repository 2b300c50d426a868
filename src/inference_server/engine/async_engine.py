"""`AsyncEngine`: the engine as the event loop sees it. Admission, hop 2, streams, health, start and stop.

Everything here runs on one event loop and only reads what the engine thread publishes; all it sends are commands. Whatever
becomes of that thread, every stream it was given ends with exactly one terminal delta.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread

from inference_server.core.clock import Clock
from inference_server.core.errors import (
    EngineDeadError,
    InferenceServerError,
    InvalidRequestError,
    NotReadyError,
    OverloadedError,
    RequestAbortedError,
)
from inference_server.core.generation import GenerationRequest
from inference_server.core.options import EngineOptions
from inference_server.core.records import EngineSnapshot, RequestRecord
from inference_server.core.request import ScheduledRequest
from inference_server.engine.engine import Engine, EngineState
from inference_server.engine.grammar_workers import GrammarWorkers
from inference_server.engine.health import Health, stack_of
from inference_server.engine.input_processor import InputProcessor, Prompt, text_length
from inference_server.engine.loaded_model import LoadedModel
from inference_server.engine.request_stream import RequestStream
from inference_server.engine.stream_registry import StreamRegistry

logger = logging.getLogger(__name__)

_WORKER_ABOVE_CHARS = 4096
_STEP_LIMIT_S = 10.0
_INSPECT_LIMIT_S = 2.0
_LOAD_LIMIT_S = 1.0
_LOADING_RETRY_S = 5.0
_MAX_RETRY_S = 60.0


class AsyncEngine:
    """All methods run on the loop that called `start`."""

    def __init__(
        self,
        engine: Engine,
        options: EngineOptions,
        clock: Clock = time.monotonic,
        *,
        step_limit_s: float = _STEP_LIMIT_S,
    ) -> None:
        """step_limit_s: how long `stop` waits for the step that runs."""
        self._engine = engine
        self._options = options
        self._clock = clock
        self._step_limit_s = step_limit_s
        self._streams = StreamRegistry()
        self._grammars = GrammarWorkers()
        self._thread: Thread | None = None
        self._ended = asyncio.Event()
        self._draining = False
        self._stopping = False
        self._given_up = False
        self._busy_since = 0.0

    @property
    def state(self) -> EngineState:
        state = self._engine.state
        return EngineState.DRAINING if self._draining and state in (EngineState.LOADING, EngineState.READY) else state

    @property
    def snapshot(self) -> EngineSnapshot:
        return self._engine.snapshot

    @property
    def model(self) -> LoadedModel | None:
        return self._engine.model

    @property
    def running(self) -> bool:
        """Whether the engine thread has yet to end; after `stop`: it was left behind."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def num_open(self) -> int:
        """Requests that were let in and have not ended: being tokenised, waiting or running."""
        return self._streams.num_places

    async def start(self) -> None:
        """Start the engine thread and return; the model loads in it. Once only."""
        self._streams.bind(asyncio.get_running_loop())
        # A daemon: a forward that hangs must not keep the process alive.
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def begin_drain(self) -> None:
        """Let no more requests in; those that are in go on."""
        self._draining = True

    async def stop(self, drain_timeout_s: float = 0.0) -> None:
        """Drain for up to `drain_timeout_s`, end what is left, end the thread.

        Returns in bounded time, whatever the thread does: a step may end, but nobody waits for a model that loads.
        """
        self.begin_drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_timeout_s):
                await self._streams.wait_quiet()
        self._stopping = True
        self._grammars.close()
        if self._thread is None:
            return
        self._engine.stop()
        limit_s = _LOAD_LIMIT_S if self._engine.state is EngineState.LOADING else self._step_limit_s
        try:
            async with asyncio.timeout(limit_s):
                await self._ended.wait()
            self._thread.join(limit_s)
        except TimeoutError:
            logger.warning("the engine thread is busy and was left behind")
            self.abandon()

    def abandon(self) -> None:
        """End every stream now; the engine thread, if it still can, writes down that they ended."""
        self._stopping = True
        self._engine.stop()
        self._streams.close_all(lambda: RequestAbortedError("the server is shutting down"))

    async def wait_ended(self) -> None:
        """Until the engine thread has ended, by `stop` or by a failure, and every stream with it."""
        await self._ended.wait()

    def give_up(self) -> None:
        """For an engine thread that is stalled: log where it is, end every stream with an error, and let nothing in any more."""
        logger.critical("the engine thread makes no progress; it is at\n%s", stack_of(self._thread))
        self._given_up = True
        self._streams.close_all(self._end_error)

    def check_admission(self, num_places: int = 1) -> None:
        """Cheap enough to run before a body is read. Raises EngineDeadError, NotReadyError or OverloadedError."""
        if self._engine.state is EngineState.DEAD or self._stalled():
            raise self._end_error()
        if self._draining or self._engine.state is EngineState.STOPPED:
            raise NotReadyError("the server is shutting down", reason="draining")
        if self._engine.state is EngineState.LOADING:
            raise _still_loading()
        # The snapshot is older than the count of places, and shows the rows of an ended request freed before its place is
        # given back: the difference never understates how many wait.
        num_waiting = self.num_open - self.snapshot.scheduler.num_active
        if num_waiting + num_places > self._options.max_queue_size:
            retry_after_s = min(max(1.0, self._streams.seconds_per_end() * num_waiting / 2), _MAX_RETRY_S)
            raise OverloadedError(f"the queue is full: {num_waiting} requests wait", retry_after_s=retry_after_s, reason="queue_full")

    async def generate(self, *requests: GenerationRequest) -> RequestStream:
        """Let in what one client asks for, prepare it and send it to the engine. A stream of n choices of each, in their order.

        Every choice takes a place. Raises what `check_admission` raises, and InvalidRequestError or PromptTooLongError, for
        all together. Later failures are terminal deltas of the stream, which may be its first.
        """
        num_choices = sum(request.n for request in requests)
        if num_choices > self._options.max_queue_size:
            message = f"{num_choices} choices are more than the {self._options.max_queue_size} that may wait here"
            raise InvalidRequestError(message, param="n" if len(requests) == 1 else "prompt")
        self.check_admission(num_choices)
        self._streams.take_places(num_choices)
        try:
            groups = await self._prepare(requests)
            if self._stopping or self._given_up or self._ended.is_set():
                raise self._end_error()
        except BaseException:
            self._streams.give_places_back(num_choices)
            raise
        if not self._streams.num_streams:
            self._busy_since = self._clock()
        stream = RequestStream([choice.request_id for group in groups for choice in group], self._engine.abort)
        self._streams.open(stream)
        for group in groups:
            self._engine.add(*group)
        return stream

    async def open_requests(self) -> tuple[RequestRecord, ...]:
        """The lives so far of the requests in the engine, oldest first, as of a step boundary.

        Raises TimeoutError when there was none for `_INSPECT_LIMIT_S`.
        """
        if self._engine.model is None or self._ended.is_set():
            return ()
        reply: asyncio.Future[tuple[RequestRecord, ...]] = asyncio.get_running_loop().create_future()
        self._engine.inspect(lambda records: self._streams.call(lambda: None if reply.done() else reply.set_result(records)))
        async with asyncio.timeout(_INSPECT_LIMIT_S):
            return await reply

    async def tokenize(self, prompt: Prompt, add_special_tokens: bool = True) -> list[int]:
        """Token ids, as a generation would start from. Raises NotReadyError while loading, and InvalidRequestError."""
        inputs = self._inputs()
        if text_length(prompt) <= _WORKER_ABOVE_CHARS:
            return inputs.encode(prompt, add_special_tokens)
        return await asyncio.to_thread(inputs.encode, prompt, add_special_tokens)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Text, special tokens left out. Raises NotReadyError while loading, and InvalidRequestError."""
        inputs = self._inputs()
        if len(token_ids) <= _WORKER_ABOVE_CHARS:
            return inputs.decode(token_ids)
        return await asyncio.to_thread(inputs.decode, token_ids)

    def health(self) -> Health:
        """Never blocks. `stalled`: work waits, and no step has ended for longer than the steps under way should take."""
        last_step_time = self._engine.last_step_time
        age_s = None if last_step_time is None else self._clock() - last_step_time
        if self._engine.state in (EngineState.DEAD, EngineState.STOPPED):
            return Health("dead", age_s)
        if self._stalled():
            return Health("stalled", age_s)
        if self._draining:
            return Health("draining", age_s)
        if self._engine.state is EngineState.LOADING:
            return Health("loading", age_s)
        return Health("ok" if self._streams.num_streams else "idle", age_s)

    def _stalled(self) -> bool:
        """An idle engine takes no steps: the wait of its first request counts from that request."""
        if self._given_up or not self._streams.num_streams:
            return self._given_up
        return self._clock() - max(self._engine.last_step_time or 0.0, self._busy_since) > self._engine.stall_after_s

    def _run(self) -> None:
        """The engine thread."""
        try:
            self._engine.run(self._streams.hand_over)
        finally:
            self._streams.call(self._on_end)

    def _on_end(self) -> None:
        """Runs after the thread's last hand-over; what the engine had not taken from its inbox ends here."""
        self._ended.set()
        self._streams.close_all(self._end_error)

    def _end_error(self) -> InferenceServerError:
        if self._engine.state is EngineState.DEAD:
            return EngineDeadError(self._engine.load_error or "the engine has failed")
        if self._stalled():
            return EngineDeadError("the engine makes no progress")
        return RequestAbortedError("the server is shutting down")

    async def _prepare(self, requests: Sequence[GenerationRequest]) -> list[list[ScheduledRequest]]:
        model = self._loaded()
        inputs, grammars = InputProcessor(model, self._options), [await self._grammars.compile(request, model) for request in requests]

        def choices() -> list[list[ScheduledRequest]]:
            return [inputs.choices(request, grammar) for request, grammar in zip(requests, grammars, strict=True)]

        if sum(text_length(request.prompt) for request in requests) <= _WORKER_ABOVE_CHARS:
            return choices()
        return await asyncio.to_thread(choices)

    def _inputs(self) -> InputProcessor:
        return InputProcessor(self._loaded(), self._options)

    def _loaded(self) -> LoadedModel:
        if self._engine.model is None:
            raise _still_loading()
        return self._engine.model


def _still_loading() -> NotReadyError:
    return NotReadyError("the model is still loading", retry_after_s=_LOADING_RETRY_S, reason="loading")
