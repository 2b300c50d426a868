"""A server process for the chaos test: the product's own `main`, whose steps fail at random, with a route that tells what it holds.

CHAOS_SEED and CHAOS_FAULTS (the share of calls to the backend that fail) come from the environment. MODEL_NAME=fake is `FakeBackend`.
"""

import asyncio
import ctypes
import gc
import os
import random
import sys
import threading
from dataclasses import replace
from typing import Any

import psutil
from chaos_model import load_fake
from fastapi import FastAPI
from faulty_backend import FaultyBackend

from inference_server import __main__, server
from inference_server.config import Settings
from inference_server.core.prefix_journal import PrefixJournal
from inference_server.engine.loaded_model import LoadedModel

load_real_model = server.load_model


def load(settings: Settings, journal: PrefixJournal | None) -> LoadedModel:
    model = load_fake(settings) if settings.model_name == "fake" else load_real_model(settings, journal)
    faults = FaultyBackend(model.backend, float(os.environ["CHAOS_FAULTS"]), random.Random(os.environ["CHAOS_SEED"]))
    return replace(model, backend=faults)


def give_free_memory_back() -> None:
    """The C library keeps what was freed; a leak is what it cannot give back."""
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def create(settings: Settings) -> FastAPI:
    app = server.create_app(settings)
    process = psutil.Process()

    @app.get("/chaos/state")
    async def state() -> dict[str, Any]:
        gc.collect()
        give_free_memory_back()
        return {
            "open": app.state.context.engine.num_open,
            "tasks": len(asyncio.all_tasks()),
            "threads": threading.active_count(),
            "fds": process.num_fds(),
            "rss": process.memory_info().rss,
        }

    return app


if __name__ == "__main__":
    server.load_model = load
    __main__.create_app = create
    __main__.main()
