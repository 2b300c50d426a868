"""Measure what one step costs in the scheduler: `schedule()` plus `update()` with a full batch of decoding requests.

The budget is 1.0 ms at 256 running and 1,000 waiting requests on one core, and the number waiting should not matter. The prompts share a
prefix of PROMPT_TOKENS, and the prefix cache takes in every block. The rows belong to --keys fairness keys. With --churn, one row ends, one
is admitted and one arrives every step. --held measures something else: `schedule()` alone, while so many prompts wait for memory. Each of
these has 8,000 tokens, of which all prompts share half.
"""

import argparse
import gc
import time
from statistics import median, quantiles

from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.core.options import CacheOptions, PolicyName, SchedulerOptions
from inference_server.core.plan import StepResult
from inference_server.core.request import FinishReason, RequestOrigin, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.kv_cache.factory import create_cache
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler

PROMPT_TOKENS = 64  # each prompt has up to a block more, so that rows cross block edges at different steps


def make_request(index: int, num_keys: int, max_tokens: int) -> ScheduledRequest:
    key = f"key{index % num_keys}"
    prompt = [1] * PROMPT_TOKENS + [index] * (1 + index % 16)
    return ScheduledRequest(f"r{index}", prompt, SamplingParams(max_tokens=max_tokens), float(index), RequestOrigin(fairness_key=key))


def make_scheduler(num_running: int, num_steps: int, policy: PolicyName, prefix_cache: bool) -> ContinuousBatchScheduler:
    """A scheduler over a full and a window group that never runs out of blocks."""
    groups = (LayerGroup((0,), 1, 64, 2), LayerGroup((1, 2, 3, 4, 5), 1, 64, 2, window=512))
    blocks = num_running * ((PROMPT_TOKENS + 16 + max_tokens(num_steps)) // 16 + 3)
    cache = create_cache(KVLayout.from_num_blocks(groups, 16, 2 * blocks), CacheOptions(enable_prefix_cache=prefix_cache))
    options = SchedulerOptions(max_batch_size=num_running, max_batched_tokens=num_running * (PROMPT_TOKENS + 16), scheduling_policy=policy)
    return ContinuousBatchScheduler(cache, options)


def max_tokens(num_steps: int) -> int:
    return 2 * num_steps + 2


def step_times(scheduler: ContinuousBatchScheduler, args: argparse.Namespace, num_waiting: int) -> list[float]:
    """Seconds of each step once the batch is full and every row decodes."""
    num_added = args.running + num_waiting
    for index in range(num_added):
        scheduler.add(make_request(index, args.keys, max_tokens(args.steps)))
    times: list[float] = []
    while len(times) < args.steps:
        start = time.perf_counter()
        plan = scheduler.schedule(start)
        assert plan is not None
        elapsed = time.perf_counter() - start
        result = StepResult(0, [7] * len(plan), elapsed_s=0.01)
        start = time.perf_counter()
        scheduler.update(plan, result, {})
        elapsed += time.perf_counter() - start
        if len(plan) == args.running and plan.num_tokens < 2 * len(plan):
            times.append(elapsed)
        if args.churn:
            scheduler.finish(plan.requests[len(times) % len(plan)], FinishReason.STOP)
            scheduler.add(make_request(num_added, args.keys, max_tokens(args.steps)))
            num_added += 1
    return times


def held_times(num_held: int, num_steps: int) -> list[float]:
    """Processor seconds of `schedule()` while two requests decode and the others wait for memory."""
    groups = (LayerGroup((0,), 1, 64, 2), LayerGroup((1, 2, 3, 4, 5), 1, 64, 2, window=512))
    scheduler = ContinuousBatchScheduler(create_cache(KVLayout(groups, 16, num_slabs=200), CacheOptions()), SchedulerOptions())
    times: list[float] = []

    def add(name: str, prompt: list[int], max_tokens: int) -> None:
        scheduler.add(ScheduledRequest(name, prompt, SamplingParams(max_tokens=max_tokens), 0.0, RequestOrigin(fairness_key=name)))

    def step() -> None:
        start = time.process_time()
        plan = scheduler.schedule(0.0)
        elapsed = time.process_time() - start
        assert plan is not None
        scheduler.update(plan, StepResult(0, [7] * len(plan)), {})
        stats = scheduler.scheduler_stats()
        if stats.waiting_by_reason.get("kv_blocks", 0) and not stats.num_prefilling:
            times.append(elapsed)

    beginning = list(range(4000))
    add("first", [*beginning, 1], 1)
    while scheduler.has_unfinished():
        step()
    for row in range(2):
        add(f"row{row}", [row] * 400, num_steps)
    step()
    for index in range(num_held):
        add(f"held{index}", beginning + [index] * 4000, 1)
    for _ in range(num_steps // 2):
        step()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 1000, 10000])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--prefix-cache", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--policy", type=PolicyName, choices=list(PolicyName), default=PolicyName.FAIR)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--churn", action="store_true")
    parser.add_argument("--held", type=int)
    args = parser.parse_args()
    if args.held:
        times = held_times(args.held, args.steps)
        print(f"{args.held} held at first: median {median(times) * 1e6:.0f} us of schedule() over {len(times)} steps that decode only")
        return
    for num_waiting in args.waiting:
        scheduler = make_scheduler(args.running, args.steps, args.policy, args.prefix_cache)
        gc.collect()
        times = step_times(scheduler, args, num_waiting)
        p99 = quantiles(times, n=100)[98]
        print(
            f"{args.policy} {args.running} running, {num_waiting:>6} waiting: median {median(times) * 1e3:.3f} ms, p99 {p99 * 1e3:.3f} ms"
        )


if __name__ == "__main__":
    main()
