"""A server process for the chaos test: the product's own `main`, with steps that fail at random and a route that says what it holds.

CHAOS_SEED, CHAOS_FAULTS (the share of calls to the backend that fail) and CHAOS_LEAK (bytes that are kept of each request) come from the
environment. MODEL_NAME=fake means `FakeBackend`.
"""

import asyncio
import gc
import os
import random
import sys
import threading
from dataclasses import replace
from pathlib import Path

import psutil
from fastapi import FastAPI, Request
from faulty_backend import FaultyBackend
from starlette.types import ASGIApp, Receive, Scope, Send

sys.path.append(str(Path(__file__).parents[2] / "scripts" / "bench"))

from fake_model import load_fake

from inference_server import __main__, server
from inference_server.backends.fake_backend import FakeBackend
from inference_server.config import Settings
from inference_server.core.prefix_journal import PrefixJournal
from inference_server.engine.loaded_model import LoadedModel

load_real_model = server.load_model


def load(settings: Settings, journal: PrefixJournal | None) -> LoadedModel:
    if settings.model_name == "fake":  # steps take a while, so that clients can leave during one
        model = load_fake(settings, FakeBackend(max_model_len=1024, supports_overlap=True, step_time_s=0.002))
    else:
        model = load_real_model(settings, journal)
    faults = FaultyBackend(model.backend, float(os.environ["CHAOS_FAULTS"]), random.Random(os.environ["CHAOS_SEED"]))
    return replace(model, backend=faults)


class Counter:
    """Counts the requests, and keeps `leak` bytes of each."""

    def __init__(self, app: ASGIApp, leak: int) -> None:
        self._app = app
        self._leak = leak
        self._kept: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._kept.append(b"x" * self._leak)
        scope["requests"] = len(self._kept)
        await self._app(scope, receive, send)


def create(settings: Settings) -> FastAPI:
    app = server.create_app(settings)
    app.add_middleware(Counter, leak=int(os.environ.get("CHAOS_LEAK", 0)))
    process = psutil.Process()

    @app.get("/chaos/state")
    async def state(request: Request) -> dict[str, int]:
        gc.collect()
        psutil.heap_trim()  # memory that was freed and that the C library keeps is no leak
        heap = psutil.heap_info()
        return {
            "requests": request.scope["requests"],
            "open": app.state.context.engine.num_open,
            "tasks": len(asyncio.all_tasks()),
            "threads": threading.active_count(),
            "fds": process.num_fds(),
            "heap": heap.heap_used + heap.mmap_used,
            "rss": process.memory_info().rss,
        }

    return app


if __name__ == "__main__":
    server.load_model = load
    __main__.create_app = create
    __main__.main()
