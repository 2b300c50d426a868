"""Measure the engine without HTTP: whole workloads through `Engine.step`, scheduler and prefix cache on, dummy weights of released shapes.

A step's time is the wall time of the workload over the output tokens of its longest request, prefill included, as it was measured for vLLM
0.26 on an H200 (the column beside ours; other hardware has none). It needs torch, Triton and tokenizers, no web framework:

    PYTHONPATH=src python scripts/bench/engine.py gemma4-e2b [--workloads b1 b256] [--profile] [--cuda-graph-sizes 0]
"""

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from engine_profile import print_profile
from released_configs import CONFIGS, shortened

from inference_server.backends.factory import create_backend
from inference_server.core.model_spec import GenerationDefaults
from inference_server.core.options import CacheOptions, EngineOptions, ModelOptions, PrefillMode, SchedulerOptions
from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.engine import Engine
from inference_server.engine.loaded_model import LoadedModel
from inference_server.engine.model_loader import kv_layout
from inference_server.kv_cache.factory import create_cache
from inference_server.scheduler.admission import AdmissionController
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler
from inference_server.tokenization.chat_template import ChatTemplate


@dataclass(frozen=True, slots=True)
class Workload:
    """`rows` requests together. prompt, output: tokens in and out, from the first to the second number, drawn by a fixed seed."""

    name: str
    rows: int
    prompt: tuple[int, int] = (128, 128)
    output: tuple[int, int] = (257, 257)
    unit: str = "ms/step"

    def requests(self, round_: int, vocab_size: int) -> list[ScheduledRequest]:
        """No two prompts share a prefix, those of two rounds neither."""
        random = Random(f"{self.name} {round_}")
        requests = []
        for i in range(self.rows):
            prompt = [random.randrange(vocab_size) for _ in range(random.randint(*self.prompt))]
            sampling = SamplingParams(temperature=0.0, max_tokens=random.randint(*self.output), ignore_eos=True)
            requests.append(ScheduledRequest(f"{self.name}-{round_}-{i}", prompt, sampling, time.monotonic()))
        return requests


WORKLOADS = [
    *(Workload(f"b{rows}", rows) for rows in (1, 8, 32, 64, 128, 256)),
    Workload("prefill 1,024", 1, (1024, 1024), (1, 1), "ms"),
    Workload("prefill 8,192", 1, (8192, 8192), (1, 1), "ms"),
    Workload("b1 at 8k", 1, (8000, 8000)),
    Workload("b32 at 8k", 32, (8000, 8000), unit="s"),
    Workload("mixed 512", 512, (64, 1024), (32, 512), "tok/s"),
]
VLLM: Mapping[str, list[float]] = {  # in the order of WORKLOADS
    "gemma4-e2b": [3.32, 3.42, 3.62, 4.59, 6.12, 8.45, 24, 67, 3.61, 3.17, 12857],
    "gemma4-e4b": [4.81, 5.05, 5.45, 5.84, 8.09, 14.1, 31, 117, 5.28, 5.51, 9085],
    "qwen3-30b-a3b": [4.17, 9.37, 15.8, 18.1, 19.6, 23.4, 53, 154, 4.94, 10.1, 4794],
}


class WordTokenizer:
    """Every id is a short word, so that detokenising costs what it does for text."""

    bos_token_id = None
    eos_token_ids = ()
    special_tokens: Mapping[str, str] = {}
    strips_leading_space = False

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        raise NotImplementedError("the benchmark has no text")

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return b"".join(map(self.token_bytes, ids)).decode()

    def token_bytes(self, token_id: int) -> bytes:
        return b" word"

    def is_special(self, token_id: int) -> bool:
        return False


class WaitClock:
    """What the engine thread spends waiting for the device; the rest of a step is the host's work."""

    def __init__(self, backend: Any) -> None:
        self.waited_s = 0.0
        self._collect = backend.collect
        backend.collect = self.collect

    def collect(self, step: Any) -> Any:
        start = time.perf_counter()
        result = self._collect(step)
        self.waited_s += time.perf_counter() - start
        return result


def create_engine(folder: Path, model: ModelOptions, scheduler: SchedulerOptions, cache: CacheOptions) -> Engine:
    """An engine on the model in `folder`, loaded."""

    def load() -> LoadedModel:
        backend = create_backend(model, folder)
        spec = backend.load()
        layout = kv_layout(cache, spec)
        backend.allocate(layout)
        manager = create_cache(layout, cache)
        admission = AdmissionController(manager, max_active_tokens=cache.max_active_tokens)
        batcher = ContinuousBatchScheduler(manager, scheduler, supports_mixed=spec.supports_mixed, admission=admission)
        length = model.max_model_len or spec.max_model_len
        return LoadedModel(
            backend, batcher, WordTokenizer(spec.vocab_size), ChatTemplate("", {}), spec, GenerationDefaults(temperature=0.0), length, 0
        )

    engine = Engine(load, EngineOptions(request_deadline_s=None, admission_deadline_s=None))
    engine.load()
    return engine


def drain(engine: Engine) -> int:
    """Step until nothing is left; the number of steps."""
    steps = 0
    while engine.has_work:
        engine.step()
        steps += 1
    return steps


@dataclass(frozen=True, slots=True)
class Result:
    """figure: in the workload's unit. host_ms: of a step, what the host did beside waiting for the device."""

    workload: Workload
    figure: float
    host_ms: float
    steps: int


def measure(engine: Engine, workload: Workload, clock: WaitClock, rounds: int) -> Result:
    """The best of the rounds."""
    assert engine.model is not None
    results = []
    for round_ in range(rounds):
        requests = workload.requests(round_, engine.model.spec.vocab_size)
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


@contextmanager
def model_folder(config: Mapping[str, Any]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        yield Path(folder)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=CONFIGS)
    parser.add_argument("--workloads", nargs="+", default=[w.name for w in WORKLOADS], choices=[w.name for w in WORKLOADS], metavar="NAME")
    parser.add_argument("--num-layers", type=int, help="the first layers only, where memory or time is short")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--max-batch-size", type=int, default=256)
    parser.add_argument("--max-batched-tokens", type=int, default=8192)
    parser.add_argument("--max-model-len", type=int, default=16384)
    parser.add_argument("--prefill-mode", type=PrefillMode, choices=list(PrefillMode), default=PrefillMode.BATCHED)
    parser.add_argument("--cuda-graph-sizes", type=int, nargs="*", default=[], help="0 for none")
    parser.add_argument("--profile", action="store_true", help="where a decode step's time goes, at b1, b32 and b256")
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
        load_format="dummy",
        max_batch_size=args.max_batch_size,
        max_batched_tokens=args.max_batched_tokens,
        max_model_len=args.max_model_len,
        cuda_graph_sizes=tuple(args.cuda_graph_sizes),
    )
    scheduler = SchedulerOptions(args.max_batch_size, args.max_batched_tokens, args.prefill_mode, args.max_batched_tokens)
    with model_folder(config) as folder:
        start = time.perf_counter()
        engine = create_engine(folder, model, scheduler, CacheOptions())
        print(f"{args.model}: ready after {time.perf_counter() - start:.1f} s, {args.prefill_mode} prefill", flush=True)
    assert engine.model is not None
    clock = WaitClock(engine.model.backend)
    published = dict(zip([w.name for w in WORKLOADS], VLLM.get(args.model, []), strict=False)) if args.num_layers is None else {}
    for workload in WORKLOADS:
        if workload.name in args.workloads:
            print(row(measure(engine, workload, clock, args.rounds), published.get(workload.name)), flush=True)
    if args.profile:
        for rows in (1, 32, 256):
            print_profile(engine, Workload(f"profile b{rows}", rows, output=(64, 64)).requests(0, engine.model.spec.vocab_size))


if __name__ == "__main__":
    main()
