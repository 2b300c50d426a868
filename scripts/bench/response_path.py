"""What an event of a stream costs the event loop, and how many tokens a second one interpreter serves, with a fake model.

    PYTHONPATH=src python scripts/bench/response_path.py [--streams 256]

A server on `FakeBackend` in a process of its own, with the real scheduler, engine, routes and uvicorn; this process is the client, raw
sockets that count events. Costs are processor time of the server while all streams run, so that they mean something on a busy machine
too. First with one event a token, then merged, as the server does it above 64 streams. The fake model's work counts as the server's.
"""

import argparse
import asyncio
import socket
import sys
import time
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection

import httpx
import uvicorn
from fake_model import load_fake
from light_client import completion, stream_all

from inference_server.backends.fake_backend import FakeBackend
from inference_server.config import Settings
from inference_server.core.kv_layout import LayerGroup
from inference_server.engine import outbox
from inference_server.server import create_app

# The fake model hashes what a token attends to. That is no part of the path, so it attends to little.
GROUPS = (LayerGroup((0,), 1, 1, 2, window=1),)
LOOK_EVERY_S = 0.002


@dataclass(frozen=True, slots=True)
class Reading:
    """Of the server. loop_s, process_s: processor time of the event loop's thread and of all; steps: of the engine."""

    time: float
    loop_s: float
    process_s: float
    steps: int


@dataclass(frozen=True, slots=True)
class Figures:
    """While all streams ran. us_per_event: of the loop's thread. The two rates are tokens a second by the clock and by processor time."""

    us_per_event: float
    tokens_per_event: float
    rate: float
    processor_rate: float


async def serve(listener: socket.socket, control: Connection, streams: int, step_s: float) -> None:
    """Until the other side of `control` says so; any other message is answered by a reading."""
    settings = Settings(
        _env_file=None,
        model_name="fake",
        max_batch_size=streams,
        max_queue_size=streams,
        max_batched_tokens=32 * streams,
        kv_cache_num_blocks=64 * streams,
        enable_prefix_cache=False,
        log_level="warning",
    )
    app = create_app(settings, partial(load_fake, settings, FakeBackend(GROUPS, step_time_s=step_s)))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none"))
    engine = app.state.context.engine

    def on_message() -> None:
        if control.recv() is None:
            server.should_exit = True
            return
        control.send(Reading(time.perf_counter(), time.thread_time(), time.process_time(), engine.snapshot.step_id))

    asyncio.get_running_loop().add_reader(control.fileno(), on_message)
    await server.serve([listener])


def run_server(listener: socket.socket, control: Connection, streams: int, step_s: float, merged: bool) -> None:
    if not merged:
        outbox.MERGE_ABOVE = sys.maxsize
    with asyncio.Runner(loop_factory=uvicorn.Config("").get_loop_factory()) as runner:
        runner.run(serve(listener, control, streams, step_s))


def measure(streams: int, tokens: int, step_s: float, merged: bool) -> Figures:
    context = get_context("spawn")
    here, there = context.Pipe()
    readings: list[Reading] = []
    counts: list[int] = []

    def mark(num_events: int) -> None:
        counts.append(num_events)
        here.send("read")
        readings.append(here.recv())

    with socket.create_server(("127.0.0.1", 0), backlog=streams) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        child = context.Process(target=run_server, args=(listener, there, streams, step_s, merged))
        child.start()
        try:
            requests = [completion(url, f"A fake model reads prompt {i}", tokens) for i in range(streams)]
            while httpx.get(f"{url}/ready", timeout=120, trust_env=False).status_code != 200:
                time.sleep(0.05)
            stream_all(url, requests[:1])
            stream_all(url, requests, mark, mark, LOOK_EVERY_S)
        finally:
            here.send(None)
            child.join()
    first, last = readings
    events, made = counts[1] - counts[0], (last.steps - first.steps) * streams
    return Figures(
        us_per_event=1e6 * (last.loop_s - first.loop_s) / events,
        tokens_per_event=made / events,
        rate=made / (last.time - first.time),
        processor_rate=made / (last.process_s - first.process_s),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=512, help="of each stream")
    parser.add_argument("--step-ms", type=float, default=20.0, help="of a step of the first run: long enough to send each token alone")
    args = parser.parse_args()
    for merged in (False, True):
        figures = measure(args.streams, args.tokens, 0.0 if merged else args.step_ms / 1e3, merged)
        print(f"{args.streams} streams, {'merged' if merged else 'one event a token'}:", end=" ")
        print(f"{figures.us_per_event:.1f} µs of the event loop an event of {figures.tokens_per_event:.1f} tokens,", end=" ")
        print(f"{figures.rate:,.0f} tokens/s by the clock, {figures.processor_rate:,.0f} by the server's processor time", flush=True)


if __name__ == "__main__":
    main()
