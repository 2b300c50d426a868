"""The composition root: builds every part from `Settings`, and looks after the life of the process.

uvicorn runs the lifespan before it opens the socket, so the lifespan only starts the engine thread, which loads the model. `app`, for
`uvicorn inference_server.server:app`, is built on first access: importing this module reads no settings.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import FrameType

from fastapi import FastAPI

from inference_server.api.app import build_app
from inference_server.api.context import ApiContext
from inference_server.config import Settings
from inference_server.engine.async_engine import AsyncEngine
from inference_server.engine.engine import Engine, EngineState
from inference_server.engine.loaded_model import LoadedModel
from inference_server.observability.logs import configure_logging
from inference_server.observability.prometheus import PrometheusSink
from inference_server.observability.tracker import MetricsTracker

SWITCH_INTERVAL_S = 0.0002  # how long the engine thread may keep the interpreter from the event loop, and the other way round
WATCH_INTERVAL_S = 2.0
FLUSH_S = 0.5

logger = logging.getLogger(__name__)


def create_app(settings: Settings | None = None, load: Callable[[], LoadedModel] | None = None) -> FastAPI:
    """The application. settings: None reads environment and `.env`. load: makes the model, on the engine thread; None loads what the
    settings name."""
    settings = Settings.from_cli() if settings is None else settings
    clock = time.monotonic
    options = settings.api_options()
    tracker, prometheus = MetricsTracker(clock), PrometheusSink(options.served_model_name)
    load = partial(_load_and_freeze, load or partial(load_model, settings))
    engine_options = settings.engine_options()
    engine = AsyncEngine(Engine(load, engine_options, (tracker, prometheus), clock), engine_options, clock)
    context = ApiContext(engine, options, tracker, prometheus, clock, time.time, started_at=int(time.time()))
    return build_app(context, lifespan=partial(_lifespan, engine, settings))


def __getattr__(name: str) -> FastAPI:
    if name != "app":
        raise AttributeError(name)
    app = create_app()
    globals()["app"] = app
    return app


@asynccontextmanager
async def _lifespan(engine: AsyncEngine, settings: Settings, app: FastAPI) -> AsyncIterator[None]:
    configure_logging(settings.log_level, settings.log_format)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    await engine.start()
    GracefulExit(engine, settings.drain_timeout_s).install()
    watch = asyncio.create_task(_exit_when_broken(engine))
    try:
        yield
    finally:
        watch.cancel()
        await engine.stop()


class GracefulExit:
    """Chains itself before the server's own signal handlers: drain with the listener open, then let the server close.

    The first SIGTERM or SIGINT makes readiness and new generations 503 at once and lets running requests finish. A second one ends the
    process on the spot.
    """

    def __init__(self, engine: AsyncEngine, drain_timeout_s: float) -> None:
        self._engine = engine
        self._drain_timeout_s = drain_timeout_s
        self._loop = asyncio.get_running_loop()
        self._drain_task: asyncio.Task[None] | None = None
        self._signalled = False
        self._server_handlers: dict[int, Callable[[int, FrameType | None], object]] = {}

    def install(self) -> None:
        """Python delivers signals to the main thread alone; a server in another thread has none to chain."""
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in (signal.SIGTERM, signal.SIGINT):
            previous = signal.signal(signum, self._handle)
            if callable(previous):
                self._server_handlers[signum] = previous

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._signalled:
            os._exit(128 + signum)
        self._signalled = True
        self._engine.begin_drain()
        self._loop.call_soon_threadsafe(self._start, signum)

    def _start(self, signum: int) -> None:
        self._drain_task = asyncio.create_task(self._drain(signum))

    async def _drain(self, signum: int) -> None:
        logger.info("%s: draining %d requests", signal.Signals(signum).name, self._engine.num_open)
        await self._engine.stop(self._drain_timeout_s)
        handler = self._server_handlers.get(signum)
        if handler is None:
            os._exit(128 + signum)
        handler(signum, None)


async def _exit_when_broken(engine: AsyncEngine) -> None:
    """End the process, non-zero, once the engine is dead or stalled, so that an orchestrator restarts it. The engine has logged why."""
    ended = asyncio.create_task(engine.wait_ended())
    while not ended.done() and engine.health().status != "stalled":
        await asyncio.wait((ended,), timeout=WATCH_INTERVAL_S)
    if engine.state is EngineState.STOPPED:
        return
    logger.critical("the engine is %s: exiting", engine.health().status)
    await engine.stop()
    await asyncio.sleep(FLUSH_S)  # for the streams' last events
    logging.shutdown()
    os._exit(1)


def _load_and_freeze(load: Callable[[], LoadedModel]) -> LoadedModel:
    """What loading leaves behind lives as long as the process: no collection needs to walk it again."""
    model = load()
    gc.collect()
    gc.freeze()
    return model


def load_model(settings: Settings) -> LoadedModel:
    raise NotImplementedError
