"""The HTTP tests' server on `FakeBackend`, with the real scheduler and prefix cache: what the load tools are tried on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from api_server import TestServer, running

from inference_server.backends.fake_backend import FakeBackend
from inference_server.config import Settings
from inference_server.core.model_spec import GenerationDefaults
from inference_server.engine.loaded_model import LoadedModel
from inference_server.engine.model_loader import kv_layout
from inference_server.kv_cache.factory import create_cache
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler
from inference_server.tokenization.chat_template import ChatTemplate
from inference_server.tokenization.tokenizer import ByteTokenizer

MAX_MODEL_LEN = 16384


def _load(settings: Settings, step_time_s: float) -> LoadedModel:
    backend = FakeBackend(max_model_len=MAX_MODEL_LEN, step_time_s=step_time_s)
    spec, options = backend.load(), settings.cache_options()
    layout = kv_layout(options, spec)
    backend.allocate(layout)
    scheduler = ContinuousBatchScheduler(create_cache(layout, options), settings.scheduler_options())
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    return LoadedModel(backend, scheduler, ByteTokenizer(), template, spec, GenerationDefaults(temperature=0.0), MAX_MODEL_LEN, 0)


@contextmanager
def serving(step_time_s: float = 0.002, **settings: Any) -> Iterator[TestServer]:
    settings = {"kv_cache_num_blocks": 4096, **settings}
    with running(load_model=lambda configured, _: _load(configured, step_time_s), **settings) as server:
        yield server
