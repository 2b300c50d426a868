"""Measure the engine without HTTP: whole workloads through `Engine.step`, scheduler and prefix cache on, dummy weights of released shapes.

A step's time is the wall time of the workload, prefill included, over the output tokens of its longest request. vLLM 0.26 was measured in
the same way on an H200; that column is left out on other hardware. It needs torch, Triton and tokenizers, no web framework:

    PYTHONPATH=src python scripts/bench/engine.py gemma4-e2b [--workloads b1 b256] [--profile] [--cuda-graph-sizes 0]
"""

import argparse
import gc
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_host import print_host_times
from engine_profile import print_profile
from engine_rig import WaitClock, create_engine, model_folder
from engine_workloads import VLLM, WORKLOADS, Workload
from released_configs import CONFIGS, shortened

from inference_server.core.options import CacheOptions, ModelOptions, PrefillMode, SchedulerOptions
from inference_server.engine.engine import Engine


def drain(engine: Engine) -> int:
    """Step until no work is left. Returns the number of steps."""
    steps = 0
    while engine.has_work:
        engine.step()
        steps += 1
    return steps


@dataclass(frozen=True, slots=True)
class Result:
    """figure: in the workload's unit. host_ms: what the host did in a step, without its waiting for the device."""

    workload: Workload
    figure: float
    host_ms: float
    steps: int


def measure(engine: Engine, workload: Workload, clock: WaitClock, rounds: int, temperature: float = 0.0) -> Result:
    """Run the workload `rounds` times and return the best result."""
    assert engine.model is not None
    results = []
    for round_ in range(rounds):
        requests = workload.requests(round_, engine.model.spec.vocab_size, temperature)
        clock.waited_s = 0.0
        start = time.perf_counter()
        for request in requests:
            engine.add(request)
        steps = drain(engine)
        elapsed = time.perf_counter() - start
        outputs = [request.num_output_tokens for request in requests]
        assert outputs == [request.sampling.max_tokens for request in requests], "a request did not run to its end"
        scale = {"ms/step": 1e3 / max(outputs), "ms": 1e3, "s": 1.0}
        figure = sum(outputs) / elapsed if workload.unit == "tok/s" else elapsed * scale[workload.unit]
        results.append(Result(workload, figure, (elapsed - clock.waited_s) / steps * 1e3, steps))
    return max(results, key=lambda r: r.figure) if workload.unit == "tok/s" else min(results, key=lambda r: r.figure)


def row(result: Result, vllm: float | None) -> str:
    figure, unit = result.figure, result.workload.unit
    text = f"{result.workload.name:14} {figure:10.2f} {unit:8} host {result.host_ms:6.3f} ms of each of {result.steps:5} steps"
    return text if vllm is None else f"{text}   vLLM {vllm:8.2f}   ratio {figure / vllm:5.2f}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=CONFIGS)
    parser.add_argument("--workloads", nargs="+", default=[w.name for w in WORKLOADS], choices=[w.name for w in WORKLOADS], metavar="NAME")
    parser.add_argument("--num-layers", type=int, help="use only so many of the first layers, where memory or time is short")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quantization", default="none", choices=["none", "int8"], help="vLLM's figures are without quantisation")
    parser.add_argument("--temperature", type=float, default=0.0, help="above 0, tokens are drawn; vLLM's figures are greedy")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--max-batch-size", type=int, default=256)
    parser.add_argument("--max-batched-tokens", type=int, default=8192)
    parser.add_argument("--max-model-len", type=int, default=16384)
    parser.add_argument("--prefill-mode", type=PrefillMode, choices=list(PrefillMode), default=PrefillMode.BATCHED)
    parser.add_argument("--unnoticed-itl-ms", type=float, default=SchedulerOptions().unnoticed_itl_ms, help="for `mixed` and `chunked`")
    parser.add_argument("--cuda-graph-sizes", type=int, nargs="*", default=[], help="0 for no graphs")
    parser.add_argument("--torch-compile", action="store_true", help="compile as CUSTOM_BACKEND_COMPILE does")
    parser.add_argument("--host", action="store_true", help="where the host's time of a step goes: decodes of 1, 32 and 256 rows")
    parser.add_argument(
        "--profile", action="store_true", help="where the time of a step goes: decodes of 1, 32 and 256 rows, prompts of 8,192"
    )
    return parser.parse_args()


def main() -> None:
    args = parse()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    config = CONFIGS[args.model] if args.num_layers is None else shortened(CONFIGS[args.model], args.num_layers)
    model = ModelOptions(
        args.model,
        None,
        Path(),
        device=args.device,
        quantization=args.quantization,
        load_format="dummy",
        max_batch_size=args.max_batch_size,
        max_batched_tokens=args.max_batched_tokens,
        max_model_len=args.max_model_len,
        cuda_graph_sizes=tuple(args.cuda_graph_sizes),
        torch_compile=args.torch_compile,
    )
    scheduler = SchedulerOptions(
        args.max_batch_size, args.max_batched_tokens, args.prefill_mode, args.max_batched_tokens, args.unnoticed_itl_ms
    )
    with model_folder(config) as folder:
        start = time.perf_counter()
        engine = create_engine(folder, model, scheduler, CacheOptions())
        gc.collect()
        gc.freeze()  # as the server does: else each full collection would walk all that torch has loaded
        print(f"{args.model}: ready after {time.perf_counter() - start:.1f} s, {args.prefill_mode} prefill", flush=True)
    assert engine.model is not None
    backend: Any = engine.model.backend
    clock = WaitClock(backend)
    published = dict(zip([w.name for w in WORKLOADS], VLLM.get(args.model, []), strict=False)) if args.num_layers is None else {}
    for workload in WORKLOADS:
        if workload.name in args.workloads:
            print(row(measure(engine, workload, clock, args.rounds, args.temperature), published.get(workload.name)), flush=True)
    replayed, forwards = backend.graph_hits
    print(f"replayed as graphs: {replayed} of {forwards} forwards")
    if args.host:
        for rows in (1, 32, 256):
            decodes = Workload(f"decode of {rows}", rows, output=(96, 96))
            print_host_times(decodes.name, engine, decodes.requests(1, engine.model.spec.vocab_size), warm_steps=20, timed_steps=64)
    if args.profile:
        vocab_size = engine.model.spec.vocab_size
        for rows in (1, 32, 256):
            decodes = Workload(f"decode of {rows}", rows, output=(64, 64))
            print_profile(decodes.name, engine, decodes.requests(0, vocab_size), warm_steps=20, traced_steps=12)
        prompts = Workload("prefill of 8,192", 8, (8192, 8192), (1, 1))
        print_profile(prompts.name, engine, prompts.requests(0, vocab_size), warm_steps=2, traced_steps=5)


if __name__ == "__main__":
    main()
