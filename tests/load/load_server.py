"""The HTTP tests' server on `FakeBackend`, with the real scheduler and prefix cache, to try the load tools."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from api_server import TestServer, running
from fake_model import load_fake

from inference_server.api.http_protocol import HttpProtocol
from inference_server.backends.fake_backend import FakeBackend

MAX_MODEL_LEN = 16384


@contextmanager
def serving(step_time_s: float = 0.002, http: type[HttpProtocol] = HttpProtocol, **settings: Any) -> Iterator[TestServer]:
    settings = {"kv_cache_num_blocks": 4096, **settings}
    backend = FakeBackend(max_model_len=MAX_MODEL_LEN, step_time_s=step_time_s)
    with running(load_model=lambda configured, _: load_fake(configured, backend), http=http, **settings) as server:
        yield server
