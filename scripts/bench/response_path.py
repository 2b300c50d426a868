"""What an event of a stream costs the event loop, and how many tokens a second one interpreter serves, on a fake model.

    PYTHONPATH=src python scripts/bench/response_path.py [--streams 256]

A server on `FakeBackend` runs in a process of its own, with the real scheduler, engine, routes and uvicorn; this process is the client, raw
sockets that count events. Costs are processor time of the server while all streams run, so they hold on a busy machine too; the fake
model's work counts as the server's. The first run measures the floor: as many writes of as many bytes by a thread that does nothing else.
The second sends one event for each token, the third merges tokens into events, as the server does above 64 streams.
"""

import argparse
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection

import httpx
from http_load.light_client import completion, stream_all
from response_server import Reading, run_floor, run_server

LOOK_EVERY_S = 0.002
Run = Callable[[socket.socket, Connection], None]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of the time in which all streams ran. us_per_event: processor time of the event loop. rate, processor_rate: tokens a second
    of the clock and of processor time.
    """

    us_per_event: float
    tokens_per_event: float
    rate: float
    processor_rate: float


def wait_ready(url: str) -> None:
    while httpx.get(f"{url}/ready", timeout=120, trust_env=False).status_code != 200:
        time.sleep(0.05)


@contextmanager
def running(run: Run, backlog: int = 1) -> Iterator[tuple[str, Callable[[], Reading]]]:
    """Run a server in a process of its own. Yields its address, and a function that takes a reading of it."""
    context = get_context("spawn")
    here, there = context.Pipe()

    def read() -> Reading:
        here.send("read")
        reading: Reading = here.recv()
        return reading

    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as listener:
        child = context.Process(target=run, args=(listener, there))
        child.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", read
        finally:
            here.send(None)
            child.join()


def measure(streams: int, tokens: int, run: Run, wait: Callable[[str], None] = wait_ready) -> Figures:
    """Measure the server that `run` runs. wait: waits until the server at an address is ready."""
    readings: list[Reading] = []
    counts: list[int] = []
    with running(run, streams) as (url, read):

        def mark(num_events: int) -> None:
            counts.append(num_events)
            readings.append(read())

        requests = [completion(url, f"A fake model reads prompt {i}", tokens) for i in range(streams)]
        wait(url)
        stream_all(url, requests[:1])
        stream_all(url, requests, mark, mark, LOOK_EVERY_S)
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
    parser.add_argument("--tokens", type=int, default=512, help="tokens of each stream")
    parser.add_argument("--step-ms", type=float, default=20.0, help="of a step without merging: long enough to send each token alone")
    args = parser.parse_args()
    streams, tokens, step_s = args.streams, args.tokens, args.step_ms / 1e3
    floor = measure(streams, tokens, partial(run_floor, streams, tokens, step_s), lambda url: None)
    print(f"{streams} streams, floor: {floor.us_per_event:.1f} µs of a thread that only sends, an event of one token", flush=True)
    for merged in (False, True):
        figures = measure(streams, tokens, partial(run_server, streams, 0.0 if merged else step_s, merged))
        print(f"{streams} streams, {'merged' if merged else 'one event a token'}:", end=" ")
        print(f"{figures.us_per_event:.1f} µs of the event loop an event of {figures.tokens_per_event:.1f} tokens,", end=" ")
        print(f"{figures.rate:,.0f} tokens/s by the clock, {figures.processor_rate:,.0f} by the server's processor time", flush=True)


if __name__ == "__main__":
    main()
