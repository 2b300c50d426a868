"""A server process for the chaos test: the product's own `main`, whose steps fail at random, with a route that tells what it holds.

CHAOS_SEED and CHAOS_FAULTS (the share of steps that fail) come from the environment. MODEL_NAME=fake is `FakeBackend`.
"""

import asyncio
import ctypes
import gc
import os
import random
import sys
import threading
from dataclasses import dataclass, replace
from typing import Any

import psutil
from fastapi import FastAPI

from inference_server import __main__, server
from inference_server.backends.base import InferenceBackend
from inference_server.backends.fake_backend import FakeBackend
from inference_server.config import Settings
from inference_server.core.errors import StepFailedError
from inference_server.core.kv_layout import KVLayout
from inference_server.core.model_spec import GenerationDefaults, ModelSpec
from inference_server.core.plan import StepPlan, StepResult, TokenMasks
from inference_server.engine.loaded_model import LoadedModel
from inference_server.engine.model_loader import grammar_compiler
from inference_server.kv_cache.factory import create_cache
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler
from inference_server.tokenization.chat_template import ChatTemplate
from inference_server.tokenization.tokenizer import ByteTokenizer

MAX_MODEL_LEN = 1024
STEP_S = 0.002
load_real_model = server.load_model


@dataclass
class FaultyBackend:
    """Another backend, of whose calls a share fails as a step does that runs out of memory."""

    inner: InferenceBackend[Any]
    share: float
    rng: random.Random

    def load(self) -> ModelSpec:
        return self.inner.load()

    def allocate(self, layout: KVLayout) -> None:
        self.inner.allocate(layout)

    def launch(self, plan: StepPlan) -> Any:
        self._fail("launch")
        return self.inner.launch(plan)

    def sample(self, step: Any, masks: TokenMasks | None = None) -> None:
        self.inner.sample(step, masks)
        self._fail("sample")

    def collect(self, step: Any) -> StepResult:
        result = self.inner.collect(step)
        self._fail("collect")
        return result

    def close(self) -> None:
        self.inner.close()

    def _fail(self, where: str) -> None:
        if self.rng.random() < self.share:
            raise StepFailedError(f"injected in {where}")


def load(settings: Settings) -> LoadedModel:
    model = load_fake(settings) if settings.model_name == "fake" else load_real_model(settings)
    faults = FaultyBackend(model.backend, float(os.environ["CHAOS_FAULTS"]), random.Random(os.environ["CHAOS_SEED"]))
    return replace(model, backend=faults)


def load_fake(settings: Settings) -> LoadedModel:
    backend = FakeBackend(max_model_len=MAX_MODEL_LEN, supports_overlap=True, step_time_s=STEP_S)
    spec, options = backend.load(), settings.cache_options()
    layout = KVLayout.from_num_blocks(spec.groups, options.block_size, options.num_blocks or 256)
    backend.allocate(layout)
    scheduler = ContinuousBatchScheduler(create_cache(layout, options), settings.scheduler_options())
    tokenizer = ByteTokenizer()
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    defaults = GenerationDefaults(temperature=0.0)
    grammars = grammar_compiler(tokenizer, tokenizer.vocab_size)
    return LoadedModel(backend, scheduler, tokenizer, template, spec, defaults, MAX_MODEL_LEN, 0, grammars=grammars)


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
