"""Servers of `response_path.py` and `request_path.py`, to run in their own processes: the real one, and one that only sends.

They serve streams until None comes by `control`, and answer whatever else comes with a reading. The one that only sends has its events
ready and sends one to each stream at a time, with as many bytes as the real one, so it shows the floor of what that costs.
"""

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

import uvicorn
from fake_model import load_fake

from inference_server.api.http_protocol import HttpProtocol
from inference_server.backends.fake_backend import FakeBackend
from inference_server.config import Settings
from inference_server.core.kv_layout import LayerGroup
from inference_server.engine import outbox
from inference_server.engine.loaded_model import LoadedModel
from inference_server.server import create_app

# The fake model hashes what a token attends to. That is no part of the path, so a short window keeps it small.
GROUPS = (LayerGroup((0,), 1, 1, 2, window=1),)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion","created":1764460800,"model":"fake",'
    b'"choices":[{"index":0,"text":"\\u0000","logprobs":null,"finish_reason":null}],"usage":null}\n\n'
)
LAST = b'data: {"usage":{"completion_tokens":%d}}\n\ndata: [DONE]\n\n'
LARGEST_REQUEST = 1 << 16


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading of a server. loop_s, engine_s, process_s: processor time of the sending thread, of the engine's thread and of all. steps:
    how many the engine has run.
    """

    time: float
    loop_s: float
    engine_s: float
    process_s: float
    steps: int

    @classmethod
    def now(cls, steps: int) -> "Reading":
        """Take a reading; to be called on the thread that sends."""
        idents = [thread.ident for thread in threading.enumerate() if thread.name == "engine"]
        engine_s = sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents if ident is not None)
        return cls(time.perf_counter(), time.thread_time(), engine_s, time.process_time(), steps)


async def serve(listener: socket.socket, control: Connection, settings: Settings, load: Callable[[], LoadedModel]) -> None:
    app = create_app(settings, load)
    server = uvicorn.Server(uvicorn.Config(app, http=HttpProtocol, log_config=None, ws="none"))
    engine = app.state.context.engine

    def on_message() -> None:
        if control.recv() is None:
            server.should_exit = True
            return
        control.send(Reading.now(engine.snapshot.step_id))

    asyncio.get_running_loop().add_reader(control.fileno(), on_message)
    await server.serve([listener])


def run_loaded(settings: Settings, load: Callable[[], LoadedModel], listener: socket.socket, control: Connection) -> None:
    """Run the real server, on the event loop that uvicorn would choose."""
    with asyncio.Runner(loop_factory=uvicorn.Config("").get_loop_factory()) as runner:
        runner.run(serve(listener, control, settings, load))


def run_server(streams: int, step_s: float, merged: bool, listener: socket.socket, control: Connection) -> None:
    if not merged:
        outbox.MERGE_ABOVE = sys.maxsize
    settings = Settings(
        _env_file=None,
        model_name="fake",
        max_batch_size=streams,
        max_queue_size=streams,
        max_batched_tokens=32 * streams,
        prefill_chunk_size=32 * streams,  # as on CUDA, whose host side this measures
        kv_cache_num_blocks=64 * streams,
        enable_prefix_cache=False,
        log_level="warning",
    )
    run_loaded(settings, partial(load_fake, settings, FakeBackend(GROUPS, step_time_s=step_s)), listener, control)


def run_floor(streams: int, tokens: int, step_s: float, listener: socket.socket, control: Connection) -> None:
    """Serve one stream, then all at once, without any work but sending."""
    for number in (1, streams):
        connections = [listener.accept()[0] for _ in range(number)]
        for connection in connections:
            connection.recv(LARGEST_REQUEST)
            connection.sendall(HEAD)
        due, event = time.perf_counter(), _chunk(EVENT)
        for step in range(1, tokens + 1):
            for connection in connections:
                connection.send(event)
            if control.poll():
                control.recv()
                control.send(Reading.now(step))
            due += step_s
            time.sleep(max(0.0, due - time.perf_counter()))
        for connection in connections:
            connection.sendall(_chunk(LAST % tokens) + _chunk(b""))
            connection.close()
    while control.recv() is not None:
        control.send(Reading.now(tokens))


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)
