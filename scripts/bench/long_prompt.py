"""Measure what a long prompt costs a neighbour that decodes: times between its tokens alone and beside the prompt, by prefill mode.

Half of the times alone are from before the prompt and half from after it, since a machine's speed changes. The aim is that in the modes
`mixed` and `chunked` the 99th percentile beside the prompt is at most 2 times that alone; the other modes compute a prompt in one step.

Runs the engine in this process, without HTTP, on the model that MODEL_NAME names (default: embedded).
"""

import argparse
import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from inference_server.config import Settings
from inference_server.core.options import EngineOptions, PrefillMode
from inference_server.core.request import RequestOrigin, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.engine import Engine
from inference_server.server import load_model


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def request_of(name: str, num_prompt: int, max_tokens: int) -> ScheduledRequest:
    """A request without deadlines of its own, whose prompt holds ids of ordinary tokens."""
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    token_ids = [2] + [1000 + index % 5000 for index in range(num_prompt - 1)]
    return ScheduledRequest(name, token_ids, sampling, time.monotonic(), RequestOrigin(fairness_key=name))


def gaps(times: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


def described(values: Sequence[float]) -> str:
    figures = {"p50": median(values), "p99": percentile(values, 0.99), "max": max(values)}
    return ", ".join(f"{name} {value * 1e3:.1f}" for name, value in figures.items()) + f" ms ({len(values)} tokens)"


def measure(mode: PrefillMode, num_prompt: int, num_alone: int) -> None:
    settings = Settings(prefill_mode=mode.value, kv_cache_num_blocks=(num_prompt + 8192) // 16)
    engine = Engine(lambda: load_model(settings), EngineOptions(request_deadline_s=None))
    engine.load()
    engine.add(request_of("warm", 64, 8))
    while engine.has_work:
        engine.step()
    times: list[float] = []

    def step() -> bool:
        """Run one step. Returns whether the long prompt's token has come."""
        deltas = engine.step()
        if "stream" in deltas:
            times.append(time.monotonic())
        return "long" in deltas

    engine.add(request_of("stream", 16, 4000))
    while len(times) <= num_alone // 2:
        step()
    alone = gaps(times[1:])
    start, mark = time.monotonic(), len(times) - 1
    engine.add(request_of("long", num_prompt, 1))
    while not step():
        pass
    prefill_s = time.monotonic() - start
    step()
    beside = gaps(times[mark:])
    mark = len(times)
    while len(times) < mark + num_alone // 2:
        step()
    alone += gaps(times[mark:])
    p50, p99 = (percentile(beside, share) / percentile(alone, share) for share in (0.5, 0.99))
    print(f"{mode}: p50 {p50:.2f} and p99 {p99:.2f} times alone; {num_prompt} tokens in {prefill_s:.1f} s")
    print(f"  alone {described(alone)}; beside {described(beside)}")
    engine.stop()
    step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", type=PrefillMode, nargs="+", choices=list(PrefillMode), default=list(PrefillMode))
    parser.add_argument("--prompt", type=int, default=8000)
    parser.add_argument("--alone", type=int, default=200)
    args = parser.parse_args()
    for mode in args.modes:
        measure(mode, args.prompt, args.alone)


if __name__ == "__main__":
    main()
