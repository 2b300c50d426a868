"""The engine on its thread: loading, health, death, and a stop that returns from every state."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Event

import pytest
from engine_fakes import RecordList, VirtualClock, loaded
from engine_serving import asking, held, serving, slow, until

from inference_server.core.errors import (
    EngineDeadError,
    ModelLoadError,
    NotReadyError,
    RequestAbortedError,
)
from inference_server.core.generation import GenerationRequest
from inference_server.core.options import EngineOptions
from inference_server.core.plan import StepPlan
from inference_server.core.request import FinishReason
from inference_server.engine.async_engine import AsyncEngine
from inference_server.engine.engine import Engine, EngineState
from inference_server.engine.health import Health
from inference_server.engine.request_stream import RequestStream
from inference_server.engine.step_pace import StepPace

pytestmark = pytest.mark.anyio


async def test_a_failed_load_is_told_in_one_line() -> None:
    def load() -> None:
        raise ModelLoadError("no such model: x")

    engine = AsyncEngine(Engine(load, EngineOptions()), EngineOptions())  # type: ignore[arg-type]
    await engine.start()
    await asyncio.wait_for(engine.wait_ended(), 5)
    assert (engine.state, engine.health().status) == (EngineState.DEAD, "dead")
    with pytest.raises(EngineDeadError, match="no such model: x"):
        await engine.generate(asking("a"))
    await asyncio.wait_for(engine.stop(5), 1)


async def test_requests_wait_outside_while_the_model_loads_and_stop_does_not_wait_for_it() -> None:
    release = Event()

    def load() -> None:
        release.wait(20)
        raise ModelLoadError("too late")

    engine = AsyncEngine(Engine(load, EngineOptions()), EngineOptions())  # type: ignore[arg-type]
    await engine.start()
    assert engine.health().status == "loading"
    with pytest.raises(NotReadyError):
        await engine.generate(asking("a"))
    with pytest.raises(NotReadyError):
        await engine.tokenize("a")
    await asyncio.wait_for(engine.stop(30), 5)
    release.set()
    await asyncio.wait_for(engine.wait_ended(), 5)


async def test_a_dying_thread_ends_every_stream_also_those_it_had_not_seen() -> None:
    backend = held()

    def explode(plan: StepPlan) -> None:
        raise ZeroDivisionError

    backend.before_collect = explode
    async with serving(loaded(backend)) as engine:
        first = await engine.generate(asking("seen"))
        await until(lambda: backend.num_launches == 1)
        second = await engine.generate(asking("still in the inbox"))
        backend.gate.set()
        for stream in (first, second):
            deltas = [d async for d in stream]
            assert len(deltas) == 1
            assert isinstance(deltas[0].error, EngineDeadError)
        assert (engine.health().status, engine.num_open) == ("dead", 0)
        with pytest.raises(EngineDeadError):
            engine.check_admission()
    assert backend.closed


async def test_a_sink_that_raises_still_leaves_no_stream_open() -> None:
    class Broken(RecordList):
        def on_request(self, record: object) -> None:
            raise ZeroDivisionError

    backend = held()
    async with serving(loaded(backend), sink=Broken()) as engine:
        streams = [await engine.generate(asking("ab")) for _ in range(5)]
        backend.gate.set()
        ends = [[d async for d in stream][-1] for stream in streams]
        assert all(end.terminal for end in ends)
        assert any(isinstance(end.error, EngineDeadError) for end in ends)


async def test_stop_when_never_started_and_when_idle() -> None:
    await asyncio.wait_for(AsyncEngine(Engine(loaded, EngineOptions()), EngineOptions()).stop(5), 1)
    async with serving() as engine:
        assert engine.health().status == "idle"
        await asyncio.wait_for(engine.stop(5), 1)
        await asyncio.wait_for(engine.stop(5), 1)
        assert (engine.state, engine.health().status) == (EngineState.STOPPED, "dead")
        with pytest.raises(NotReadyError):
            await engine.generate(asking("a"))


async def test_stop_drains_what_is_in_and_lets_nothing_more_in() -> None:
    async with serving() as engine:
        stream = await engine.generate(asking("finish me " * 10))
        stopping = asyncio.create_task(engine.stop(10))
        await asyncio.sleep(0)
        assert (engine.state, engine.health().status) == (EngineState.DRAINING, "draining")
        with pytest.raises(NotReadyError):
            engine.check_admission()
        assert (await stream.collect()).text == "finish me " * 10
        await asyncio.wait_for(stopping, 2)


async def test_stop_ends_what_does_not_finish_in_time() -> None:
    backend, sink = slow(), RecordList()
    async with serving(loaded(backend), sink=sink) as engine:
        streams = [await engine.generate(asking("ab", ignore_eos=True, max_tokens=4000)) for _ in range(20)]
        await asyncio.wait_for(engine.stop(0.02), 2)
        for stream in streams:
            with pytest.raises(RequestAbortedError):
                await stream.collect()
        assert engine.snapshot.cache.used_blocks == 0
    assert [r.finish_reason for r in sink.requests] == [FinishReason.ABORT] * 20
    assert backend.closed


async def test_stop_leaves_a_thread_behind_that_hangs_in_a_step() -> None:
    backend = held()
    async with serving(loaded(backend)) as engine:
        stream = await engine.generate(asking("ab"))
        await until(lambda: backend.num_launches == 1)
        await asyncio.wait_for(engine.stop(), 5)
        with pytest.raises(RequestAbortedError):
            await stream.collect()
        backend.gate.set()
        await asyncio.wait_for(engine.wait_ended(), 5)


class Panic(BaseException):
    """What Python gets when a library written in Rust panics."""


async def test_a_panic_ends_the_thread_as_any_failure_does() -> None:
    backend = held()

    def panic(plan: StepPlan) -> None:
        raise Panic

    backend.before_collect = panic
    async with serving(loaded(backend)) as engine:
        stream = await engine.generate(asking("ab"))
        backend.gate.set()
        with pytest.raises(EngineDeadError):
            await stream.collect()
        await asyncio.wait_for(engine.wait_ended(), 5)
        assert engine.state is EngineState.DEAD
    assert backend.closed


@asynccontextmanager
async def held_in_a_step(prompt: str) -> AsyncIterator[tuple[AsyncEngine, RequestStream, VirtualClock, Event]]:
    """An engine whose thread hangs in its first step until the event is set, on a clock that the test moves."""
    backend, clock, options = held(), VirtualClock(), EngineOptions(request_deadline_s=None, stall_after_s=60.0)
    engine = AsyncEngine(Engine(lambda: loaded(backend), options, clock=clock), options, clock)
    await engine.start()
    await until(lambda: engine.state is EngineState.READY)
    clock.now += 1000
    assert engine.health() == Health("idle", 1000)
    stream = await engine.generate(GenerationRequest(prompt, clock.now))
    await until(lambda: backend.num_launches == 1)
    yield engine, stream, clock, backend.gate
    backend.gate.set()
    await engine.stop()


async def test_health_says_stalled_when_work_waits_and_no_step_ends() -> None:
    async with held_in_a_step("ab") as (engine, stream, clock, gate):
        assert engine.health().status == "ok"
        engine.check_admission()
        clock.now += 60 + StepPace().allowance_s(3) + 1
        assert engine.health().status == "stalled"
        with pytest.raises(EngineDeadError):
            engine.check_admission()
        engine.begin_drain()
        assert engine.health().status == "stalled"
        gate.set()
        assert (await stream.collect()).text == "ab"
        assert engine.health() == Health("draining", 0)


async def test_a_long_prompt_has_the_time_that_its_tokens_take() -> None:
    async with held_in_a_step("a" * 302) as (engine, stream, clock, gate):
        clock.now += 300
        assert engine.health().status == "ok"
        clock.now += 100
        assert engine.health().status == "stalled"
        gate.set()
        assert (await stream.collect()).text == "a" * 302


async def test_giving_up_ends_every_stream_at_once_and_says_where_the_thread_is(caplog: pytest.LogCaptureFixture) -> None:
    async with held_in_a_step("ab") as (engine, stream, clock, _):
        second = await engine.generate(asking("in the inbox"))
        clock.now += 1000
        engine.give_up()
        for ended in (stream, second):
            with pytest.raises(EngineDeadError, match="no progress"):
                await ended.collect()
        assert engine.num_open == 0
        assert engine.health().status == "stalled"
        with pytest.raises(EngineDeadError):
            await engine.generate(asking("too late"))
        assert "self._pipeline.collect()" in caplog.text
        assert "the gate stayed shut" in caplog.text
