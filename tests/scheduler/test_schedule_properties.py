"""Random schedules on tiny pools: arrivals, aborts at every stage, late stops, preemption, with and without overlap.

After every operation the books balance; every request ends once; every token is that of a straight run. The state machine
finds the small counter-examples, the seeded schedules reach the long ones, with many requests and much preemption.
"""

import contextlib
import random

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from scheduler_driver import Driver, two_groups

from inference_server.core.errors import PromptTooLongError
from inference_server.core.kv_layout import LayerGroup
from inference_server.core.options import PolicyName, PrefillMode, SchedulerOptions
from inference_server.core.plan import StepPlan
from inference_server.kv_cache.eviction import LRU, SinkLRU

FULL_ONLY = (LayerGroup((0,), 1, 1, 1),)
POLICIES = (None, LRU(), SinkLRU(1))
GROUPS = (FULL_ONLY, two_groups(1), two_groups(3), two_groups(4), two_groups(9))


def unmeasured(plan: StepPlan) -> float:
    return 0.0


def by_tokens(plan: StepPlan) -> float:
    """Prompt tokens are dear, so that few fit beside a decode."""
    return 1.0 + 0.3 * plan.num_tokens


@st.composite
def drivers(draw: st.DrawFn) -> Driver:
    batch = draw(st.integers(1, 5))
    options = SchedulerOptions(
        max_batch_size=batch,
        max_batched_tokens=batch + draw(st.integers(0, 12)),
        prefill_mode=draw(st.sampled_from(PrefillMode)),
        prefill_chunk_size=draw(st.integers(1, 10)),
        scheduling_policy=draw(st.sampled_from(PolicyName)),
    )
    return Driver(
        options,
        groups=draw(st.sampled_from(GROUPS)),
        block_size=draw(st.sampled_from([1, 2, 4])),
        num_slabs=draw(st.integers(3, 16)),
        overlap=draw(st.booleans()),
        supports_mixed=draw(st.booleans()),
        eviction=draw(st.sampled_from(POLICIES)),
        step_time_s=draw(st.sampled_from([unmeasured, by_tokens])),
    )


class ScheduleMachine(RuleBasedStateMachine):
    @initialize(driver=drivers())
    def start(self, driver: Driver) -> None:
        self.driver = driver

    @rule(
        prompt=st.lists(st.integers(0, 3), min_size=1, max_size=20),
        max_tokens=st.integers(1, 16),
        stop_after=st.integers(1, 20),
        priority=st.integers(0, 1),
        key=st.sampled_from("ABC"),
        n=st.sampled_from([1, 1, 2, 4]),
    )
    def add(self, prompt: list[int], max_tokens: int, stop_after: int, priority: int, key: str, n: int) -> None:
        with contextlib.suppress(PromptTooLongError):
            self.driver.add_group(prompt, [max_tokens] * n, stop_after=stop_after, priority=priority, key=key)

    @precondition(lambda self: self.driver.unfinished)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = self.driver.unfinished[data.draw(st.sampled_from(sorted(self.driver.unfinished)))]
        self.driver.abort(request)
        self.driver.abort(request)

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.driver.step()

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.driver.run()
        assert len(self.driver.finished) == self.driver.num_added


TestSchedules = ScheduleMachine.TestCase
TestSchedules.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def random_driver(rng: random.Random, *, overlap: bool) -> Driver:
    batch = rng.randint(2, 6)
    options = SchedulerOptions(
        max_batch_size=batch,
        max_batched_tokens=batch + rng.randint(0, 12),
        prefill_mode=rng.choice(list(PrefillMode)),
        prefill_chunk_size=rng.randint(1, 10),
        scheduling_policy=rng.choice(list(PolicyName)),
    )
    return Driver(
        options,
        groups=rng.choice(GROUPS),
        block_size=rng.choice([1, 2, 4]),
        num_slabs=rng.randint(8, 20),
        overlap=overlap,
        step_time_s=rng.choice([unmeasured, by_tokens]),
    )


@pytest.mark.parametrize("overlap", [False, True])
def test_seeded_schedules(overlap: bool) -> None:
    rng = random.Random(17)
    num_preemptions = num_rests = 0
    for _ in range(40):
        driver = random_driver(rng, overlap=overlap)
        for _ in range(40):
            choice = rng.random()
            if choice < 0.4:
                prompt = [rng.randrange(4) for _ in range(rng.randint(1, 12))]
                with contextlib.suppress(PromptTooLongError):
                    key = rng.choice("ABC")
                    driver.add(prompt, rng.randint(1, 40), stop_after=rng.randint(1, 50), priority=rng.randrange(2), key=key)
            elif choice < 0.45 and driver.unfinished:
                driver.abort(rng.choice(list(driver.unfinished.values())))
            else:
                for _ in range(rng.randint(1, 6)):
                    driver.step()
                    num_rests += driver.scheduler._resting is not None
        driver.run()
        assert len(driver.finished) == driver.num_added
        num_preemptions += driver.scheduler.scheduler_stats().preemptions_total
    assert num_preemptions > 40
    assert num_rests > 10 or not overlap
