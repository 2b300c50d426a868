"""Measure what one step costs in the scheduler: `schedule()` plus `update()` with a full batch of decoding requests.

The budget is 1.0 ms at 256 running and 1,000 waiting requests on one core, whatever the number waiting. The prompts share a
prefix of PROMPT_TOKENS, and the prefix cache takes in every block.
"""

import argparse
import gc
import time
from statistics import median, quantiles

from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.core.options import CacheOptions, SchedulerOptions
from inference_server.core.plan import StepResult
from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.kv_cache.factory import create_cache
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler

PROMPT_TOKENS = 64  # and up to a block more, so that rows cross block edges at different steps


def make_scheduler(num_running: int, num_waiting: int, num_steps: int, prefix_cache: bool) -> ContinuousBatchScheduler:
    """A scheduler over a full and a window group whose batch is full, and which never runs out of blocks."""
    groups = (LayerGroup((0,), 1, 64, 2), LayerGroup((1, 2, 3, 4, 5), 1, 64, 2, window=512))
    max_tokens = 2 * num_steps + 2
    blocks = num_running * ((PROMPT_TOKENS + 16 + max_tokens) // 16 + 3)
    cache = create_cache(KVLayout.from_num_blocks(groups, 16, 2 * blocks), CacheOptions(enable_prefix_cache=prefix_cache))
    scheduler = ContinuousBatchScheduler(
        cache, SchedulerOptions(max_batch_size=num_running, max_batched_tokens=num_running * (PROMPT_TOKENS + 16))
    )
    for index in range(num_running + num_waiting):
        sampling = SamplingParams(max_tokens=max_tokens)
        prompt = [1] * PROMPT_TOKENS + [index] * (1 + index % 16)
        scheduler.add(ScheduledRequest(f"r{index}", prompt, sampling, arrival_time=float(index)))
    return scheduler


def step_times(scheduler: ContinuousBatchScheduler, num_rows: int, num_steps: int) -> list[float]:
    """Seconds of each step once the batch is full and every row decodes."""
    result = StepResult(0, [7] * num_rows)
    times: list[float] = []
    while len(times) < num_steps:
        start = time.perf_counter()
        plan = scheduler.schedule(start)
        assert plan is not None
        elapsed = time.perf_counter() - start
        rows = result if len(plan) == num_rows else StepResult(0, [7] * len(plan))
        start = time.perf_counter()
        scheduler.update(plan, rows, {})
        elapsed += time.perf_counter() - start
        if plan.num_decodes == num_rows:
            times.append(elapsed)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 1000, 10000])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--prefix-cache", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    for num_waiting in args.waiting:
        scheduler = make_scheduler(args.running, num_waiting, args.steps, args.prefix_cache)
        gc.collect()
        times = step_times(scheduler, args.running, args.steps)
        p99 = quantiles(times, n=100)[98]
        print(f"{args.running} running, {num_waiting:>6} waiting: median {median(times) * 1e3:.3f} ms, p99 {p99 * 1e3:.3f} ms")


if __name__ == "__main__":
    main()
