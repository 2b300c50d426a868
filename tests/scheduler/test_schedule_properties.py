"""Random schedules on tiny pools: arrivals, aborts at every stage, late stops, preemption, evictions, with and without overlap.

After every operation the books balance; every request ends once; every token is that of a straight run. The state machine
finds the small counter-examples, the seeded schedules reach the long ones, with many requests and much preemption.
`pytest -m heavy tests/scheduler/test_schedule_properties.py` runs 2,000 of those.
"""

import contextlib
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from random_schedules import GROUPS, POLICIES, by_tokens, report_masses, run_schedule, unmeasured
from scheduler_driver import Driver

from inference_server.core.errors import PromptTooLongError
from inference_server.core.options import PolicyName, PrefillMode, SchedulerOptions


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
    driver = Driver(
        options,
        groups=draw(st.sampled_from(GROUPS)),
        block_size=draw(st.sampled_from([1, 2, 4])),
        num_slabs=draw(st.integers(3, 16)),
        overlap=draw(st.booleans()),
        supports_mixed=draw(st.booleans()),
        eviction=draw(st.sampled_from(POLICIES))(),
        step_time_s=draw(st.sampled_from([unmeasured, by_tokens])),
    )
    report_masses(driver, draw(st.integers(0, 1000)))
    return driver


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


# How often a hundred schedules must see each event: about half as often as the hundred with the fewest, of the first 2,000 schedules.
FLOORS = {"preemptions": 100, "rests": 10, "hits": 900, "evictions": 9000, "duplicates": 90, "aborts": 80, "late stops": 90}
BATCH = 100


def run_batch(number: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(BATCH * number, BATCH * (number + 1)):
        seen.update(run_schedule(seed))
    assert {name: seen[name] for name, floor in FLOORS.items() if seen[name] < floor} == {}


def test_a_hundred_seeded_schedules() -> None:
    run_batch(0)


@pytest.mark.heavy
@pytest.mark.parametrize("number", range(20))
def test_two_thousand_seeded_schedules(number: int) -> None:
    run_batch(number)
