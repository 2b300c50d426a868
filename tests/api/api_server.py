"""A real server on a loopback port for HTTP tests: the real application on the echo model, served by uvicorn in a thread."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import uvicorn
from echo_model import MODEL_NAME, EchoBackend, load_echo

from inference_server.api.context import ApiContext
from inference_server.api.http_protocol import HttpProtocol
from inference_server.config import Settings
from inference_server.core.options import ApiOptions
from inference_server.engine.loaded_model import LoadedModel
from inference_server.server import create_app

Start = Callable[..., AbstractContextManager[httpx.Client]]  # see the fixture `start`


@dataclass
class TestServer:
    __test__ = False

    url: str
    backend: EchoBackend
    context: ApiContext
    client: httpx.Client
    loop_thread: threading.Thread

    def stats(self) -> dict[str, Any]:
        return {**self.client.get("/scheduler/stats").json(), **self.client.get("/cache/stats").json()}

    def wait_for(self, condition: Callable[[dict[str, Any]], bool], limit_s: float = 2.0) -> None:
        end = time.monotonic() + limit_s
        while not condition(stats := self.stats()):
            assert time.monotonic() < end, stats
            time.sleep(0.01)

    def wait_until_free(self, limit_s: float = 2.0) -> None:
        self.wait_for(lambda s: s["active_rows"] == s["queue_depth"] == s["used_blocks"] == 0, limit_s)


@contextmanager
def running(
    backend: EchoBackend | None = None,
    load: Callable[[], LoadedModel] | None = None,
    load_model: Callable[[Settings, EchoBackend], LoadedModel] = load_echo,
    options: dict[str, Any] | None = None,
    http: type[HttpProtocol] = HttpProtocol,
    **settings: Any,
) -> Iterator[TestServer]:
    """Run a server. Yields it once its port is open, and, unless `load` is given, its model loaded. options: fields of `ApiOptions`."""
    backend = backend or EchoBackend()
    configured = Settings(_env_file=None, served_model_name=MODEL_NAME, **settings)  # type: ignore[call-arg]
    app = create_app(configured, load or (lambda: load_model(configured, backend)))
    context: ApiContext = app.state.context
    api_options: ApiOptions = replace(context.options, **(options or {}))
    app.state.context = context = replace(context, options=api_options)
    server = uvicorn.Server(uvicorn.Config(app, port=0, http=http, log_config=None, access_log=False, timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.005)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        with httpx.Client(base_url=url, timeout=20, trust_env=False) as client:
            if load is None:
                _wait_ready(client)
            yield TestServer(url, backend, context, client, thread)
    finally:
        backend.gate.set()
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"


def _wait_ready(client: httpx.Client) -> None:
    end = time.monotonic() + 10
    while client.get("/ready").status_code != 200:
        assert time.monotonic() < end
        time.sleep(0.005)
