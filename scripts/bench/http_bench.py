"""Throughput of a server over HTTP, decoding and prefill, and the machine's read bandwidth beside it.

Each of N clients streams one completion: a distinct prompt of at most 16 tokens, 64 tokens out, temperature 0, end of text
ignored. Throughput is all tokens over the wall time from the first request to the last byte; the best of several rounds counts.
Prefill is one client with prompts of about 2,000 tokens, no two alike from their first words on, and one token out.
It starts a server of its own unless --url names one. Flags that are not listed below go to that server, such as
--quantization int8. To compare figures of different machines, scale them to one bandwidth, because decoding reads every
weight once a step.
"""

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import httpx
import torch
from http_load.client import Answer, LoadClient, model_name
from http_load.openai_stream import COMPLETIONS, USAGE

REFERENCE_GBPS = 18.9
TOPICS = (
    "rivers",
    "bridges",
    "bread",
    "clocks",
    "whales",
    "maps",
    "glass",
    "trains",
    "salt",
    "kites",
    "moons",
    "violins",
    "deserts",
    "ink",
    "looms",
    "tides",
)


def read_bandwidth_gbps(gibibytes: float = 1.0, repeats: int = 8) -> float:
    """Best rate at which all cores together read a buffer far larger than the caches, in GB/s."""
    buffer = torch.ones(int(gibibytes * 2**30) // 4)
    best = 0.0
    for _ in range(repeats):
        start = time.perf_counter()
        buffer.sum()
        best = max(best, buffer.nbytes / (time.perf_counter() - start) / 1e9)
    return best


class Server(NamedTuple):
    """A running server. pid: 0 for one that was not started here."""

    url: str
    pid: int = 0


@contextmanager
def serve(startup_s: float, flags: Sequence[str]) -> Iterator[Server]:
    """Run `python -m inference_server` with these flags on a free port until the context ends. Yields once the server is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "inference_server", "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    command += flags
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(command, env=os.environ)
    try:
        wait_until_ready(url, process, startup_s)
        yield Server(url, process.pid)
    finally:
        process.terminate()
        process.wait(timeout=60)


def wait_until_ready(url: str, process: subprocess.Popen[bytes], startup_s: float) -> None:
    deadline = time.monotonic() + startup_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the server exited with code {process.returncode}")
        try:
            if httpx.get(f"{url}/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"the server was not ready within {startup_s:.0f} s")


async def complete(client: LoadClient, model: str, prompt: str, max_tokens: int) -> Answer:
    """Stream one completion. Its token counts are the server's."""
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **USAGE}
    answer = await client.stream(COMPLETIONS, body)
    if answer.error:
        raise SystemExit(answer.error)
    return answer


async def measure(url: str, num_clients: int, max_tokens: int, rounds: int) -> float:
    """Tokens per second of all clients together: the best of `rounds` rounds, after one warm-up round."""
    best, client, model = 0.0, LoadClient(url), model_name(url)
    for round_index in range(rounds + 1):
        prompts = [f"Round {round_index}: a short story about {TOPICS[i % len(TOPICS)]} {i}" for i in range(num_clients)]
        start = time.perf_counter()
        answers = await asyncio.gather(*(complete(client, model, prompt, max_tokens) for prompt in prompts))
        if round_index:
            best = max(best, sum(answer.output_tokens for answer in answers) / (time.perf_counter() - start))
    return best


async def measure_prefill(url: str, num_words: int, rounds: int) -> float:
    """Prompt tokens per second of a long prompt: the best of `rounds` rounds, after one warm-up round."""
    best, client, model = 0.0, LoadClient(url), model_name(url)
    for round_index in range(rounds + 1):
        prompt = " ".join(TOPICS[(i * i + round_index) % len(TOPICS)] for i in range(num_words))
        start = time.perf_counter()
        answer = await complete(client, model, f"Round {round_index} of {time.time_ns()}: {prompt}", 1)
        if round_index:
            best = max(best, answer.prompt_tokens / (time.perf_counter() - start))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a running server; without it one is started on the embedded model")
    parser.add_argument("--clients", type=int, nargs="+", default=(1, 8))
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--startup-s", type=float, default=600)
    parser.add_argument("--prefill-words", type=int, default=1800, help="words of the long prompt; 0 leaves prefill out")
    args, server_flags = parser.parse_known_args()
    if args.url and server_flags:
        parser.error(f"a server that runs already takes no flags: {' '.join(server_flags)}")

    bandwidth = read_bandwidth_gbps()
    scale = REFERENCE_GBPS / bandwidth
    with nullcontext(Server(args.url)) if args.url else serve(args.startup_s, server_flags) as server:
        rows = [(str(n), asyncio.run(measure(server.url, n, args.max_tokens, args.rounds))) for n in args.clients]
        if args.prefill_words:
            rows.append(("prefill", asyncio.run(measure_prefill(server.url, args.prefill_words, args.rounds))))

    out = sys.stdout.write
    out(f"read bandwidth {bandwidth:.1f} GB/s; {args.max_tokens} tokens out, best of {args.rounds}\n")
    out(f"{'clients':>8} {'tok/s':>8} {f'tok/s at {REFERENCE_GBPS} GB/s':>22}\n")
    for name, rate in rows:
        out(f"{name:>8} {rate:>8.1f} {rate * scale:>22.1f}\n")


if __name__ == "__main__":
    main()
