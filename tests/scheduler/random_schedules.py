"""Random schedules by seed: a scheduler on a tiny pool, and clients that add, abort and stop at any moment.

The driver checks the books after every call, and every token against a straight run. This module draws the schedules, and counts
what happens in them, so that a test can insist that no event has become rare.
"""

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from scheduler_driver import Driver, two_groups

from inference_server.core.errors import PromptTooLongError
from inference_server.core.kv_layout import LayerGroup
from inference_server.core.options import PolicyName, PrefillMode, SchedulerOptions
from inference_server.core.plan import StepPlan
from inference_server.core.request import FinishReason
from inference_server.kv_cache.eviction import H2O, LRU, EvictionPolicy, SinkLRU

FULL_ONLY = (LayerGroup((0,), 1, 1, 1),)
# As in Gemma 3 270M: three full layers, fifteen with a window.
GEMMA_GROUPS = (LayerGroup((0, 1, 2), 1, 1, 1), LayerGroup(tuple(range(3, 18)), 1, 1, 1, window=64))
GROUPS = (FULL_ONLY, two_groups(1), two_groups(3), two_groups(4), two_groups(9), two_groups(30))
POLICIES: tuple[Callable[[], EvictionPolicy | None], ...] = (lambda: None, LRU, lambda: SinkLRU(1), lambda: SinkLRU(3), H2O)

Action = Callable[[random.Random, Driver, list[list[int]]], None]


def unmeasured(plan: StepPlan) -> float:
    return 0.0


def by_tokens(plan: StepPlan) -> float:
    """The cost of a step in which prompt tokens are dear, so that few fit beside a decode."""
    return 1.0 + 0.3 * plan.num_tokens


def random_options(rng: random.Random) -> SchedulerOptions:
    batch = rng.randint(2, 6)
    return SchedulerOptions(
        max_batch_size=batch,
        max_batched_tokens=batch + rng.randint(0, 12),
        prefill_mode=rng.choice(list(PrefillMode)),
        prefill_chunk_size=rng.randint(1, 10),
        scheduling_policy=rng.choice(list(PolicyName)),
    )


def random_driver(rng: random.Random) -> Driver:
    driver = Driver(
        random_options(rng),
        groups=rng.choice(GROUPS),
        block_size=rng.choice([1, 2, 4]),
        num_slabs=rng.randint(8, 20),
        overlap=rng.random() < 0.5,
        supports_mixed=rng.random() < 0.8,
        eviction=rng.choice(POLICIES)(),
        step_time_s=rng.choice([unmeasured, by_tokens]),
    )
    report_masses(driver, rng.randrange(1 << 30))
    return driver


def report_masses(driver: Driver, seed: int) -> None:
    """Let every fourth step report an attention mass, whichever policy reads it."""
    rng, collect = random.Random(seed), driver.backend.collect
    num_blocks = driver.pool.layout.num_blocks(0)

    def collect_with_mass(step):  # type: ignore[no-untyped-def]
        result = collect(step)
        return result if step.step_id % 4 else replace(result, block_mass=[rng.random() for _ in range(num_blocks)])

    driver.backend.collect = collect_with_mass  # type: ignore[method-assign]


def random_prompt(rng: random.Random, driver: Driver, beginnings: list[list[int]]) -> list[int]:
    """A system prompt, or a whole earlier sequence, cut anywhere and continued."""
    earlier = [request.token_ids for request in driver.finished[-6:]]
    start = rng.choice(beginnings + earlier)
    return start[: rng.randint(1, len(start))] + [rng.randrange(3) for _ in range(rng.randint(0, 6))]


def add(rng: random.Random, driver: Driver, beginnings: list[list[int]]) -> None:
    prompt = random_prompt(rng, driver, beginnings)
    with contextlib.suppress(PromptTooLongError):
        driver.add(
            prompt,
            rng.randint(1, 40),
            stop_after=rng.randint(1, 50),
            priority=rng.randrange(2),
            key=rng.choice("ABC"),
            salt=rng.choice(["", "", "", "x"]),
        )


def abort(rng: random.Random, driver: Driver, beginnings: list[list[int]]) -> None:
    if driver.unfinished:
        request = rng.choice(list(driver.unfinished.values()))
        driver.abort(request)
        driver.abort(request)


def step(rng: random.Random, driver: Driver, beginnings: list[list[int]]) -> None:
    for _ in range(rng.randint(1, 6)):
        driver.step()


ACTIONS: dict[Action, int] = {add: 7, abort: 1, step: 10}


def run_schedule(seed: int, make_driver: Callable[[random.Random], Driver] = random_driver, num_actions: int = 40) -> Counter[str]:
    """Run one schedule to its end. Returns how often each kind of event happened. Raises AssertionError if anything is off."""
    rng = random.Random(seed)
    driver = make_driver(rng)
    beginnings = [[rng.randrange(3) for _ in range(12)] for _ in range(2)]
    seen: Counter[str] = Counter()
    for _ in range(num_actions):
        action = rng.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        action(rng, driver, beginnings)
        holds = driver.cache._prefix._holds.values() if driver.cache._prefix else ()
        seen["duplicates"] += any(hold.duplicates for hold in holds)
        seen["rests"] += driver.scheduler._resting is not None
    driver.run()
    assert len(driver.finished) == driver.num_added, "a request ended twice, or never"
    scheduler, cache = driver.scheduler.scheduler_stats(), driver.scheduler.cache_stats()
    assert cache.used_blocks == 0 and cache.cached_blocks + cache.free_blocks == cache.total_blocks
    assert cache.hit_tokens == sum(request.num_cached_tokens for request in driver.finished)
    reasons = Counter(request.finish_reason for request in driver.finished)
    seen["requests"] = len(driver.finished)
    seen["aborts"] = reasons[FinishReason.ABORT]
    seen["late stops"] = reasons[FinishReason.STOP] * driver.depth
    seen["preemptions"] = scheduler.preemptions_total
    seen["hits"], seen["evictions"] = cache.hit_tokens, cache.evicted_blocks
    return seen
