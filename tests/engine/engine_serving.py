"""A started engine for tests on an event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic, sleep

from engine_fakes import EchoBackend, RecordList, loaded

from inference_server.core.generation import GenerationRequest
from inference_server.core.options import EngineOptions
from inference_server.engine.async_engine import AsyncEngine
from inference_server.engine.engine import Engine, EngineState
from inference_server.engine.loaded_model import LoadedModel


def asking(text: str, **fields: object) -> GenerationRequest:
    return GenerationRequest(prompt=text, arrival_time=monotonic(), **fields)  # type: ignore[arg-type]


def held() -> EchoBackend:
    """A backend whose steps are launched, and collected only once the gate opens."""
    backend = EchoBackend()
    backend.gate.clear()
    return backend


def slow() -> EchoBackend:
    """A backend whose steps take 5 ms, so that a long answer outlives whatever a test does meanwhile."""
    return EchoBackend(before_collect=lambda plan: sleep(0.005))


async def text_of(engine: AsyncEngine, text: str, **fields: object) -> str:
    return (await (await engine.generate(asking(text, **fields))).collect()).text


async def freed(engine: AsyncEngine) -> None:
    await until(lambda: engine.num_open == 0)
    assert engine.snapshot.scheduler.num_active == engine.snapshot.scheduler.num_waiting == 0
    assert engine.snapshot.cache.used_blocks == 0


@asynccontextmanager
async def serving(
    model: LoadedModel | None = None, options: EngineOptions | None = None, sink: RecordList | None = None
) -> AsyncIterator[AsyncEngine]:
    """Start an engine. Yields it loaded."""
    model, options = model or loaded(), options or EngineOptions()
    engine = Engine(lambda: model, options, [sink] if sink else [])
    async_engine = AsyncEngine(engine, options, step_limit_s=0.5)
    await async_engine.start()
    await until(lambda: async_engine.state is not EngineState.LOADING)
    try:
        yield async_engine
    finally:
        await async_engine.stop()


async def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    end = monotonic() + limit_s
    while not condition():
        assert monotonic() < end, "the condition never came true"
        await asyncio.sleep(0.001)
