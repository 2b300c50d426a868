"""The composition root: builds every part from `Settings` and hands each what it needs.

`app`, for `uvicorn inference_server.server:app`, is built on first access: importing this module reads no settings.
"""

import gc
import sys
import time
from collections.abc import Callable
from functools import partial

from fastapi import FastAPI

from inference_server.api.app import build_app
from inference_server.api.context import ApiContext
from inference_server.api.lifespan import engine_lifespan
from inference_server.api.rate_limit import TokenSpending
from inference_server.config import Settings
from inference_server.core.clock import Clock
from inference_server.core.prefix_journal import PrefixJournal
from inference_server.engine.async_engine import AsyncEngine
from inference_server.engine.engine import Engine
from inference_server.engine.loaded_model import LoadedModel
from inference_server.engine.model_loader import ModelLoader
from inference_server.observability.logs import configure_logging
from inference_server.observability.sinks import SinkError, Sinks
from inference_server.simulator.simulator import LoadSimulator

# How long the engine thread may keep the interpreter from the event loop, and the other way round. A shorter time would be fairer, but
# while both are busy, each switch costs as much as some of their work (docs/log.md).
SWITCH_INTERVAL_S = 0.001


def create_app(
    settings: Settings | None = None, load: Callable[[], LoadedModel] | None = None, journal: PrefixJournal | None = None
) -> FastAPI:
    """The application. settings: None reads the environment and `.env`. load: None loads the model that the settings name. journal: where
    the prefix cache of that model writes its changes."""
    settings = Settings.from_cli() if settings is None else settings
    configure_logging(settings.log_level, settings.log_format)
    clock = time.monotonic
    options, engine_options = settings.api_options(), settings.engine_options()
    sinks, spending = _sinks(options.served_model_name, settings, clock), TokenSpending()
    readers = (*sinks, spending) if settings.rate_limit_tpm else tuple(sinks)
    engine = Engine(partial(_load, load or partial(load_model, settings, journal)), engine_options, readers, clock)
    async_engine = AsyncEngine(engine, engine_options, clock)
    simulator = LoadSimulator(clock) if settings.has_simulator else None
    context = ApiContext(
        async_engine,
        options,
        sinks.tracker,
        sinks.prometheus,
        clock,
        time.time,
        started_at=int(time.time()),
        spending=spending,
        request_log=sinks.request_log,
        simulator=simulator,
    )
    return build_app(context, engine_lifespan(async_engine, settings.drain_timeout_s, sinks.close, simulator))


def _sinks(model_name: str, settings: Settings, clock: Clock) -> Sinks:
    """The sinks that the settings ask for. Ends the process with one line if one of them cannot be had."""
    try:
        return Sinks.create(model_name, settings.sink_options(), clock)
    except SinkError as error:
        sys.stderr.write(f"inference-server: {error}\n")
        raise SystemExit(2) from None


def __getattr__(name: str) -> FastAPI:
    if name != "app":
        raise AttributeError(name)
    app = create_app()
    globals()[name] = app
    return app


def _load(load: Callable[[], LoadedModel]) -> LoadedModel:
    """Load the model, then freeze the garbage collector: what loading has created lives as long as the process, and need not be walked."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    model = load()
    gc.collect()
    gc.freeze()
    return model


def load_model(settings: Settings, journal: PrefixJournal | None = None) -> LoadedModel:
    """The model that the settings name. Takes seconds to minutes. Raises ModelLoadError with one clear line."""
    loader = ModelLoader(settings.model_options(), settings.cache_options(journal), settings.scheduler_options())
    return loader.load(settings.chat_template)
