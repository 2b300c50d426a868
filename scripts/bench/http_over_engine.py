"""How much of the engine's speed HTTP leaves, on one GPU: the same requests through `Engine.step`, and as streams of a server.

    PYTHONPATH=src python scripts/bench/http_over_engine.py gemma4-e2b [--rows 1 256] [flags of the server]

Dummy weights of a released shape, 128 random tokens in and 257 out, all requests at once; the best round counts. First the server runs in
a process of its own, then the engine in this one, with the same limits of a step. The clients are raw sockets in this process. `loop` is
the share of a core that the server's event loop took. The time between tokens is the mean of those after the first.
"""

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from engine_rig import create_engine, model_folder
from engine_workloads import WORKLOADS, Workload
from http_bench import serve
from http_load.light_client import completion, stream_all
from released_configs import CONFIGS, shortened

from inference_server.core.options import CacheOptions, ModelOptions, PrefillMode, SchedulerOptions
from inference_server.engine.engine import Engine
from inference_server.engine.outbox import MERGE_ABOVE

LOOK_EVERY_S = 0.002  # the server merges the tokens of 20 ms into one event anyway


@dataclass(frozen=True, slots=True)
class Result:
    """rate, slowest: tokens a second of the best and of the worst round. itl_ms: time between tokens."""

    rate: float
    itl_ms: float
    loop_share: float = 0.0
    slowest: float = 0.0


def through_engine(engine: Engine, workload: Workload, rounds: int) -> Result:
    assert engine.model is not None
    results = []
    for round_ in range(rounds + 1):
        requests = workload.requests(round_, engine.model.spec.vocab_size)
        begin, ends = time.perf_counter(), []
        for request in requests:
            engine.add(request)
        while engine.has_work:
            engine.step()
            if requests[-1].num_output_tokens:
                ends.append(time.perf_counter())
        tokens = sum(request.num_output_tokens for request in requests)
        results.append(Result(tokens / (time.perf_counter() - begin), 1e3 * fmean(b - a for a, b in pairwise(ends))))
    return max(results[1:], key=lambda result: result.rate)


def through_http(url: str, pid: int, workload: Workload, vocab_size: int, rounds: int) -> Result:
    results = []
    for round_ in range(rounds + 1):
        prompts = [request.token_ids for request in workload.requests(round_, vocab_size)]
        requests = [completion(url, prompt, workload.output[1]) for prompt in prompts]
        begin, loop_s = time.perf_counter(), _main_thread_s(pid)
        streams = stream_all(url, requests, every_s=LOOK_EVERY_S if len(requests) > MERGE_ABOVE else 0.0)
        elapsed, loop_s = time.perf_counter() - begin, _main_thread_s(pid) - loop_s
        tokens = sum(stream.num_tokens for stream in streams)
        assert tokens == len(streams) * workload.output[1], "an answer did not run to its end"
        itl_ms = fmean(1e3 * (stream.times[-1] - stream.times[0]) / (stream.num_tokens - 1) for stream in streams)
        results.append(Result(tokens / elapsed, itl_ms, loop_s / elapsed))
    best = max(results[1:], key=lambda result: result.rate)
    return replace(best, slowest=min(result.rate for result in results[1:]))


def _main_thread_s(pid: int) -> float:
    """Processor seconds of the main thread of process `pid`, which runs the server's event loop."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=CONFIGS)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num-layers", type=int, help="use only so many of the first layers, where memory or time is short")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--max-batched-tokens", type=int, default=8192)
    parser.add_argument("--max-model-len", type=int, default=16384)
    parser.add_argument("--num-blocks", type=int, help="blocks of the KV pool")
    parser.add_argument("--prefill-mode", type=PrefillMode, choices=list(PrefillMode), default=PrefillMode.MIXED)
    args, server_flags = parser.parse_known_args()
    config = CONFIGS[args.model] if args.num_layers is None else shortened(CONFIGS[args.model], args.num_layers)
    workloads = [next((w for w in WORKLOADS if w.name == f"b{rows}"), Workload(f"b{rows}", rows)) for rows in args.rows]
    max_rows = max(args.rows)
    with model_folder(config) as folder:
        http = serve_and_measure(folder, args, workloads, config["vocab_size"], [*server_flags])
        options = {"max_batch_size": max_rows, "max_batched_tokens": args.max_batched_tokens, "max_model_len": args.max_model_len}
        model = ModelOptions(args.model, None, Path(), device=args.device, load_format="dummy", **options)
        scheduler = SchedulerOptions(max_rows, args.max_batched_tokens, args.prefill_mode)
        engine = create_engine(folder, model, scheduler, CacheOptions(num_blocks=args.num_blocks))
    for workload, served in zip(workloads, http, strict=True):
        direct = through_engine(engine, workload, args.rounds)
        print(f"{workload.name:5} engine {direct.rate:9,.1f} tok/s, {direct.itl_ms:6.3f} ms between tokens;", end=" ")
        print(f"HTTP {served.rate:9,.1f} tok/s (slowest round {served.slowest:,.1f}), {served.itl_ms:6.3f} ms;", end=" ")
        print(f"ratio {served.rate / direct.rate:5.3f}, {served.itl_ms - direct.itl_ms:+.3f} ms; loop {served.loop_share:.0%}", flush=True)


def serve_and_measure(
    folder: Path, args: argparse.Namespace, workloads: Sequence[Workload], vocab_size: int, flags: list[str]
) -> list[Result]:
    max_rows = str(max(args.rows))
    flags += ["--model-name", str(folder), "--load-format", "dummy", "--device", args.device, "--prefill-mode", args.prefill_mode]
    flags += ["--max-batch-size", max_rows, "--max-queue-size", max_rows]
    flags += ["--max-batched-tokens", str(args.max_batched_tokens), "--max-model-len", str(args.max_model_len)]
    flags += [] if args.num_blocks is None else ["--kv-cache-num-blocks", str(args.num_blocks)]
    with serve(600, flags) as server:
        return [through_http(server.url, server.pid, workload, vocab_size, args.rounds) for workload in workloads]


if __name__ == "__main__":
    main()
