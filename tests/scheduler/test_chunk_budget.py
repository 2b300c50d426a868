"""A long prompt beside decoding rows, on a virtual clock: what it costs its neighbours, and how long it takes."""

import random
from collections.abc import Callable

import pytest
from virtual_server import Life, VirtualServer, make_request

from inference_server.core.options import PrefillMode, SchedulerOptions
from inference_server.core.plan import StepPlan
from inference_server.scheduler.chunk_budget import ChunkBudget

LONG = 3000


def laptop(plan: StepPlan) -> float:
    """Seconds of a step on a CPU: 25 ms for the weights, 1 ms a prompt token; attention makes the last token twice as dear as the first."""
    singles = plan.num_new_tokens.count(1)
    rows = zip(plan.starts, plan.num_new_tokens, strict=True)
    return 0.025 + 0.001 * singles + sum(0.001 * count * (1 + start / LONG) for start, count in rows if count > 1)


def accelerator(plan: StepPlan) -> float:
    """Seconds of a step on a GPU: 5 ms, a little for each row, and 10 us for each prompt token."""
    return 0.005 + 1e-5 * plan.num_tokens


def accelerator_with_launch_cost(plan: StepPlan) -> float:
    """As `accelerator`, but a step with a prompt in it is launched kernel by kernel."""
    return accelerator(plan) + (0.002 if max(plan.num_new_tokens) > 1 else 0.0)


def noisy_laptop(seed: int) -> Callable[[StepPlan], float]:
    """A CPU whose step times scatter, prompt tokens most. A step without a sample does not read the output head, half of the weights."""
    rng = random.Random(seed)

    def cost(plan: StepPlan) -> float:
        rows = zip(plan.starts, plan.num_new_tokens, strict=True)
        tokens = sum(0.0014 * count * (1 + 0.5 * start / LONG) for start, count in rows if count > 1)
        seconds = (0.025 if any(plan.samples) else 0.012) + (0.004 + tokens * rng.lognormvariate(0, 0.25) if tokens else 0.0)
        return seconds * rng.lognormvariate(0, 0.04) + (0.008 if rng.random() < 0.005 else 0.0)

    return cost


def run_beside(
    cost: Callable[[StepPlan], float],
    mode: PrefillMode,
    num_streams: int,
    overlap: bool = False,
    num_alone: int = 40,
    unnoticed_itl_ms: float = 0.0,
) -> tuple[list[Life], Life]:
    """Run streams that decode before, while and after a long prompt is computed."""
    options = SchedulerOptions(
        max_batch_size=16, max_batched_tokens=1024, prefill_mode=mode, prefill_chunk_size=512, unnoticed_itl_ms=unnoticed_itl_ms
    )
    virtual = VirtualServer(options, cost=cost, overlap=overlap)
    streams = [virtual.add(make_request(f"s{index}", 16, 900, key="s")) for index in range(num_streams)]
    virtual.run(until=lambda: len(streams[0].token_times) > num_alone)
    long = virtual.add(make_request("long", LONG, 2, key="l", arrival=virtual.now))
    virtual.run(until=lambda: long.request.finished)
    virtual.run(until=lambda: len(streams[0].inter_token) > 880)
    return streams, long


def slowdown(streams: list[Life], long: Life) -> float:
    """The longest time between two tokens while the prompt was computed, over the median time before it."""
    before, beside = gaps(streams, long)
    return max(beside) / percentile(before, 0.5)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * len(values))]


def gaps(streams: list[Life], long: Life) -> tuple[list[float], list[float]]:
    """Times between two tokens before the prompt came and while it was computed."""
    arrival = long.request.arrival_time
    before = [gap for life in streams for gap, at in zip(life.inter_token[5:], life.token_times[6:], strict=True) if at <= arrival]
    beside = [
        gap
        for life in streams
        for gap, at in zip(life.inter_token, life.token_times[1:], strict=True)
        if at > arrival and at - gap < long.token_times[0]
    ]
    return before, beside


@pytest.mark.parametrize("mode", [PrefillMode.MIXED, PrefillMode.CHUNKED])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_99th_percentile_at_most_doubles_on_a_machine_whose_steps_scatter(mode: PrefillMode, seed: int) -> None:
    streams, long = run_beside(noisy_laptop(seed), mode, 1, num_alone=200)
    before, beside = gaps(streams, long)
    assert len(beside) > 200
    assert percentile(beside, 0.99) <= 2 * percentile(before, 0.99)
    # The prompt does not just crawl: it gets a fair part of the time that it may add.
    assert percentile(beside, 0.5) >= 1.5 * percentile(before, 0.5)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("num_streams", [1, 6])
@pytest.mark.parametrize("cost", [laptop, accelerator, accelerator_with_launch_cost])
def test_a_long_prompt_at_most_doubles_the_time_between_its_neighbours_tokens(
    cost: Callable[[StepPlan], float], num_streams: int, overlap: bool
) -> None:
    streams, long = run_beside(cost, PrefillMode.MIXED, num_streams, overlap)
    assert slowdown(streams, long) <= 2
    # The prompt still gets on: the time that it adds to a step is a good part of what it may add.
    alone_s = streams[0].inter_token[10]
    chunked_s = sum(cost(plan_of(512, start)) for start in range(0, LONG, 512))
    assert long.ttft <= 4 * chunked_s + 40 * alone_s


@pytest.mark.parametrize("unnoticed_itl_ms", [0.0, 10.0, 40.0])
def test_a_slow_device_doubles_its_time_at_most(unnoticed_itl_ms: float) -> None:
    assert slowdown(*run_beside(laptop, PrefillMode.MIXED, 1, unnoticed_itl_ms=unnoticed_itl_ms)) <= 2


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
    assert 0.5 <= limits[-1] * 1e-4 / 0.02 <= 0.85


def test_the_limit_follows_a_device_that_slows_down() -> None:
    budget = ChunkBudget(alternating=False)
    budget.observe(4, 0, 0.01)
    for token_s in (1e-4, 4e-4):
        for _ in range(60):
            limit = budget.limit(4)
            assert limit is not None
            budget.observe(4, limit, 0.01 + token_s * limit)
        assert 0.5 <= (budget.limit(4) or 0) * token_s / 0.01 <= 0.85


@pytest.mark.parametrize(("unnoticed_s", "may_add_s"), [(0.0, 0.002), (0.003, 0.002), (0.01, 0.008)])
def test_a_fast_device_spends_the_time_that_nobody_notices_on_prompts(unnoticed_s: float, may_add_s: float) -> None:
    budget = ChunkBudget(alternating=False, unnoticed_s=unnoticed_s)
    budget.observe(1, 0, 0.002)
    for _ in range(60):
        limit = budget.limit(1) or 0
        budget.observe(1, limit, 0.002 + 1e-5 * limit)
    assert 0.5 <= (budget.limit(1) or 0) * 1e-5 / may_add_s <= 0.85


def test_the_limit_falls_with_every_step_that_was_too_long_and_recovers() -> None:
    budget = ChunkBudget(alternating=False)
    budget.observe(1, 0, 0.01)

    def after(num_steps: int, *, every: int) -> int:
        """The limit after `num_steps` steps, of which one in `every` takes three times as long as it should."""
        for step in range(num_steps):
            limit = budget.limit(1) or 0
            budget.observe(1, limit, (0.01 + 1e-4 * limit) * (3 if limit and step % every == 0 else 1))
        return budget.limit(1) or 0

    calm, hectic, calm_again = after(300, every=1000), after(300, every=20), after(1500, every=10_000)
    assert hectic < 0.6 * calm
    assert calm_again == pytest.approx(calm, rel=0.05)
