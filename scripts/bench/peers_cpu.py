"""Decode throughput of this server and of the peers that are installed, over HTTP on one machine, in one run.

    python scripts/bench/peers_cpu.py --path /other/venv/bin --path /llama.cpp/build/bin

All servers run the embedded model and stay up. Their turns are interleaved, so that other load on the machine affects all of them alike.
In a turn, each of N clients streams one greedy completion of a distinct short prompt, with the end of text ignored if the server can do
that. Throughput is the tokens that the server counts over the wall time of the turn; the best turn counts. A ratio is this server's
throughput over the peer's. llama-server runs the published GGUF file, the others bf16 weights.
"""

import argparse
import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from http_bench import TOPICS
from http_load.client import LoadClient, model_name
from http_load.openai_stream import COMPLETIONS, USAGE

from inference_server.checkpoints.embedded import assemble, prepare_embedded
from inference_server.config import Settings

OURS = "this server"
IGNORE_EOS: Mapping[str, Any] = {"ignore_eos": True, **USAGE}


@dataclass(frozen=True, slots=True)
class Peer:
    """How to start a server: its command, with {port}, {folder}, {gguf} and {cores} to fill in, and further fields of its requests."""

    name: str
    command: tuple[str, ...]
    ready_path: str = "/health"
    fields: Mapping[str, Any] = field(default_factory=lambda: IGNORE_EOS)
    environment: Mapping[str, str] = field(default_factory=dict)


TRANSFORMERS = ("transformers", "serve", "{folder}", "--port", "{port}", "--device", "cpu", "--dtype", "bfloat16")
SERVERS = (
    Peer(OURS, (sys.executable, "-m", "inference_server", "--port", "{port}", "--device", "cpu", "--log-level", "warning"), "/ready"),
    Peer("llama-server", ("llama-server", "-m", "{gguf}", "--port", "{port}", "--parallel", "8", "-c", "8192", "-t", "{cores}")),
    Peer(
        "vllm serve",
        ("vllm", "serve", "{folder}", "--port", "{port}", "--dtype", "bfloat16", "--max-model-len", "2048"),
        environment={"VLLM_CPU_KVCACHE_SPACE": "1"},
    ),
    Peer("transformers serve", TRANSFORMERS, fields={}),
    Peer("transformers serve, batching", (*TRANSFORMERS, "--continuous-batching"), fields={}),
)


@dataclass(slots=True)
class Running:
    """A running server, and its best tokens a second by number of clients."""

    peer: Peer
    url: str
    best: dict[int, float]


def find(peer: Peer, path: str) -> tuple[str, ...] | None:
    """The peer's command with its program found on `path`, or None if it is not installed."""
    program = shutil.which(peer.command[0], path=path)
    return None if program is None else (program, *peer.command[1:])


def start(
    peer: Peer, command: Sequence[str], places: Mapping[str, Any], startup_s: float, stack: ExitStack, log_file: Path | None = None
) -> Running:
    """Run the server until `stack` closes. Raises RuntimeError, with the end of the log, if the server does not become ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = stack.enter_context(tempfile.TemporaryFile() if log_file is None else log_file.open("a+b"))  # noqa: SIM115
    arguments = [part.format(port=port, **places) for part in command]
    process = subprocess.Popen(arguments, env={**os.environ, **peer.environment}, stdout=log, stderr=log)
    stack.callback(_stop, process)
    url, end = f"http://127.0.0.1:{port}", time.monotonic() + startup_s
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(url + peer.ready_path, trust_env=False).status_code == 200:
                return Running(peer, url, {})
        except httpx.TransportError:
            pass
        time.sleep(0.3)
    log.seek(0)
    last = log.read().decode(errors="replace").strip().rpartition("\n")[2]
    raise RuntimeError(f"not ready, exit code {process.poll()}: {last[:200]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def complete(client: LoadClient, body: dict[str, Any]) -> int:
    """Stream one completion. Returns the number of tokens that the server counts."""
    answer = await client.stream(COMPLETIONS, body)
    if answer.error or not answer.output_tokens:
        raise RuntimeError(answer.error or "the server does not say how many tokens it generated")
    return answer.output_tokens


async def turn(server: Running, label: str, num_clients: int, max_tokens: int) -> float:
    """Tokens a second of `num_clients` clients together. label: makes the prompts of every turn distinct."""
    client = LoadClient(server.url)
    common = {"model": model_name(server.url), "max_tokens": max_tokens, "temperature": 0, **server.peer.fields}
    prompts = [f"{label}: a short story about {TOPICS[i % len(TOPICS)]} {i}" for i in range(num_clients)]
    begin = time.perf_counter()
    tokens = await asyncio.gather(*(complete(client, {**common, "prompt": prompt}) for prompt in prompts))
    return sum(tokens) / (time.perf_counter() - begin)


def measure(servers: list[Running], clients: Sequence[int], max_tokens: int, rounds: int) -> dict[str, str]:
    """Fill in the best rates of each server, after one round that warms up. A server that fails leaves the list. Returns why, by name."""
    failed: dict[str, str] = {}
    for round_index in range(rounds + 1):
        for server in list(servers):
            for n in clients:
                try:
                    rate = asyncio.run(turn(server, f"Round {round_index}", n, max_tokens))
                except (RuntimeError, httpx.HTTPError) as error:
                    failed[server.peer.name] = str(error) or repr(error)
                    servers.remove(server)
                    break
                if round_index:
                    server.best[n] = max(server.best.get(n, 0.0), rate)
    return failed


def table(servers: Sequence[Running], clients: Sequence[int]) -> str:
    """A table with a row for each server: tokens a second by number of clients, and the ratios of this server to it."""
    ours = next((server.best for server in servers if server.peer.name == OURS), {})
    lines = [f"{'tok/s':<30}" + "".join(f"{n:>9} clients   ratio" for n in clients)]
    for server in servers:
        cells = (f"{server.best[n]:>17.1f} {ours[n] / server.best[n] if ours else float('nan'):>7.2f}" for n in clients)
        lines.append(f"{server.peer.name:<30}" + "".join(cells))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", action="append", default=[], help="a folder to search first for the peers' programs; may be repeated")
    parser.add_argument("--only", nargs="+", choices=[peer.name for peer in SERVERS], default=[peer.name for peer in SERVERS])
    parser.add_argument("--clients", type=int, nargs="+", default=(1, 8))
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--startup-s", type=float, default=600)
    args = parser.parse_args()
    path = os.pathsep.join((*args.path, os.environ.get("PATH", os.defpath)))
    servers: list[Running] = []
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        gguf = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model.gguf"
        assemble(gguf)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        places = {"folder": prepare_embedded(Settings().cache_dir), "gguf": gguf, "cores": cores}
        for peer in SERVERS:
            command = find(peer, path)
            if peer.name not in args.only or command is None:
                skipped[peer.name] = "not installed" if peer.name in args.only else "not asked for"
                continue
            try:
                servers.append(start(peer, command, places, args.startup_s, stack))
            except RuntimeError as error:
                skipped[peer.name] = str(error)
        skipped |= measure(servers, args.clients, args.max_tokens, args.rounds)
    sys.stdout.write(f"{args.max_tokens} tokens out, best of {args.rounds} interleaved rounds\n{table(servers, args.clients)}")
    for name, why in skipped.items():
        sys.stdout.write(f"skipped: {name} ({why})\n")


if __name__ == "__main__":
    main()
