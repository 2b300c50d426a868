"""The life of the process around an engine: start, drain on a signal, stop, and a non-zero exit when the engine is past help.

uvicorn runs the lifespan before it opens the socket, so it only starts the engine thread, which loads the model.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import NoReturn

from fastapi import FastAPI
from starlette.types import StatelessLifespan

from inference_server.engine.async_engine import AsyncEngine
from inference_server.simulator.simulator import LoadSimulator

WATCH_INTERVAL_S = 2.0
FLUSH_S = 0.5

logger = logging.getLogger(__name__)


def engine_lifespan(
    engine: AsyncEngine, drain_timeout_s: float, flush: Callable[[], None], simulator: LoadSimulator | None = None
) -> StatelessLifespan[FastAPI]:
    """The lifespan of an application that owns `engine`. A simulation ends before anybody waits for the requests that are open.

    flush: called last, however the process ends; it returns in bounded time.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await engine.start()
        GracefulExit(engine, drain_timeout_s, flush, simulator).install()
        watch = asyncio.create_task(_exit_when_broken(engine, flush))
        try:
            yield
        finally:
            watch.cancel()
            if simulator is not None:
                await simulator.stop()
            await engine.stop()
            flush()

    return lifespan


class GracefulExit:
    """Chains itself before the server's own signal handlers: drain with the listener open, then let the server close.

    The first SIGTERM or SIGINT makes readiness and new generations 503 at once and lets running requests finish. A second one ends their
    streams with an error and the process with them, a third one the process on the spot.
    """

    def __init__(self, engine: AsyncEngine, drain_timeout_s: float, flush: Callable[[], None], simulator: LoadSimulator | None) -> None:
        self._engine = engine
        self._flush = flush
        self._simulator = simulator
        self._drain_timeout_s = drain_timeout_s
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []  # of the reactions to the first signal and to the second
        self._reactions = iter((self._drain, self._leave))
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
        reaction = next(self._reactions, None)
        if reaction is None or self._loop.is_closed():
            os._exit(128 + signum)
        self._engine.begin_drain()
        self._loop.call_soon_threadsafe(lambda: self._tasks.append(asyncio.create_task(reaction(signum))))

    async def _drain(self, signum: int) -> None:
        logger.info("%s: draining; open requests: %d", signal.Signals(signum).name, self._engine.num_open)
        if self._simulator is not None:
            await self._simulator.stop()
        await self._engine.stop(self._drain_timeout_s)
        handler = self._server_handlers.get(signum)
        if handler is None or self._engine.running:
            # An interpreter that shuts down under a thread in native code aborts, so with the engine left behind it must not.
            await _exit(128 + signum, self._flush)
        handler(signum, None)

    async def _leave(self, signum: int) -> None:
        logger.info("%s again: leaving; open requests: %d", signal.Signals(signum).name, self._engine.num_open)
        self._tasks[0].cancel()
        self._engine.abandon()
        await _exit(128 + signum, self._flush)


async def _exit_when_broken(engine: AsyncEngine, flush: Callable[[], None]) -> None:
    """End the process, non-zero, once the engine is dead or stalled, so that an orchestrator restarts it. The engine logs why."""
    ended = asyncio.create_task(engine.wait_ended())
    while not ended.done() and engine.health().status != "stalled":
        await asyncio.wait((ended,), timeout=WATCH_INTERVAL_S)
    if engine.state == "stopped":
        return
    if not ended.done():
        engine.give_up()
    logger.info("the engine is %s: exiting", engine.health().status)
    await _exit(1, flush)


async def _exit(status: int, flush: Callable[[], None]) -> NoReturn:
    """End the process without finalising the interpreter, once the streams' last events have had time to go out."""
    await asyncio.sleep(FLUSH_S)
    flush()
    logging.shutdown()
    os._exit(status)
