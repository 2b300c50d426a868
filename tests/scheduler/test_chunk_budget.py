"""A long prompt beside decoding rows, on a virtual clock: what it costs its neighbours, and how long it takes."""

from collections.abc import Callable

import pytest
from virtual_server import Life, VirtualServer, make_request

from inference_server.core.options import PrefillMode, SchedulerOptions
from inference_server.core.plan import StepPlan
from inference_server.scheduler.chunk_budget import ChunkBudget

LONG = 3000


def laptop(plan: StepPlan) -> float:
    """A CPU: 25 ms for the weights, 1 ms a prompt token, and attention that makes the last token twice as dear as the first."""
    singles = plan.num_new_tokens.count(1)
    rows = zip(plan.starts, plan.num_new_tokens, strict=True)
    return 0.025 + 0.001 * singles + sum(0.001 * count * (1 + start / LONG) for start, count in rows if count > 1)


def accelerator(plan: StepPlan) -> float:
    """A GPU: 5 ms a step, little for a row, and 10 us a prompt token."""
    return 0.005 + 1e-5 * plan.num_tokens


def accelerator_with_launch_cost(plan: StepPlan) -> float:
    """As before, and a step with a prompt in it is launched kernel by kernel."""
    return accelerator(plan) + (0.002 if max(plan.num_new_tokens) > 1 else 0.0)


def run_beside(cost: Callable[[StepPlan], float], mode: PrefillMode, num_streams: int, overlap: bool = False) -> tuple[list[Life], Life]:
    """Streams that decode before, while and after a long prompt is computed."""
    options = SchedulerOptions(max_batch_size=16, max_batched_tokens=1024, prefill_mode=mode, prefill_chunk_size=512)
    virtual = VirtualServer(options, cost=cost, overlap=overlap)
    streams = [virtual.add(make_request(f"s{index}", 16, 900, key="s")) for index in range(num_streams)]
    virtual.run(until=lambda: len(streams[0].token_times) > 40)
    long = virtual.add(make_request("long", LONG, 2, key="l", arrival=virtual.now))
    virtual.run(until=lambda: long.request.finished)
    virtual.run(until=lambda: len(streams[0].inter_token) > 880)
    return streams, long


def slowdown(streams: list[Life], long: Life) -> float:
    """The longest time between two tokens while the prompt was computed, over the median before it."""
    arrival = long.request.arrival_time
    before = [gap for life in streams for gap, at in zip(life.inter_token[5:], life.token_times[6:], strict=True) if at <= arrival]
    beside = [
        gap
        for life in streams
        for gap, at in zip(life.inter_token, life.token_times[1:], strict=True)
        if at > arrival and at - gap < long.token_times[0]
    ]
    return max(beside) / sorted(before)[len(before) // 2]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("num_streams", [1, 6])
@pytest.mark.parametrize("cost", [laptop, accelerator, accelerator_with_launch_cost])
def test_a_long_prompt_at_most_doubles_the_time_between_its_neighbours_tokens(
    cost: Callable[[StepPlan], float], num_streams: int, overlap: bool
) -> None:
    streams, long = run_beside(cost, PrefillMode.MIXED, num_streams, overlap)
    assert slowdown(streams, long) <= 2
    # It goes on all the same: the added time a step is a good part of what may be added.
    alone_s = streams[0].inter_token[10]
    chunked_s = sum(cost(plan_of(512, start)) for start in range(0, LONG, 512))
    assert long.ttft <= 4 * chunked_s + 40 * alone_s


def plan_of(count: int, start: int) -> StepPlan:
    plan = StepPlan(0)
    plan.add(make_request("r", 1, 1), start, count, samples=False)
    return plan


def test_without_a_budget_by_time_the_same_prompt_would_be_much_worse() -> None:
    streams, long = run_beside(laptop, PrefillMode.MONOLITHIC, 1)
    assert slowdown(streams, long) > 50


def test_prompts_that_take_turns_with_decodes_are_paced_too() -> None:
    streams, long = run_beside(accelerator, PrefillMode.CHUNKED, 4)
    unavoidable = (accelerator(plan_of(4, 0)) + 0.005) / 0.005
    assert slowdown(streams, long) <= 1.5 * unavoidable


def test_nothing_is_limited_without_neighbours_or_measurements() -> None:
    budget = ChunkBudget(alternating=False)
    assert budget.limit(8) is None
    budget.observe(8, 0, 0.0)
    assert budget.limit(8) is None
    budget.observe(8, 0, 0.01)
    assert budget.limit(0) is None
    assert budget.limit(8) is not None


def test_it_measures_decodes_alone_when_their_number_has_changed_and_every_so_often() -> None:
    budget = ChunkBudget(alternating=False)
    budget.observe(8, 0, 0.01)
    limits = []
    for _ in range(100):
        limits.append(budget.limit(64))
        budget.observe(64, limits[-1] or 0, 0.02 + 1e-4 * (limits[-1] or 0))
    assert limits[:20].count(0) == 1
    assert 2 <= limits.count(0) <= 5
    assert limits[-1] == pytest.approx(0.8 * 0.02 / 1e-4, rel=0.05)


def test_the_limit_follows_a_device_that_slows_down() -> None:
    budget = ChunkBudget(alternating=False)
    budget.observe(4, 0, 0.01)
    for token_s in (1e-4, 4e-4):
        for _ in range(60):
            limit = budget.limit(4)
            assert limit is not None
            budget.observe(4, limit, 0.01 + token_s * limit)
        assert (budget.limit(4) or 0) * token_s == pytest.approx(0.008, rel=0.1)
