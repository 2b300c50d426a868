"""The scheduler by example: refill, prefill modes, time to first token, preemption, the progress guarantee, late stops."""

import pytest
from scheduler_driver import Driver, two_groups

from inference_server.backends.fake_backend import FakeBackend, FakeStep
from inference_server.core.errors import PromptTooLongError
from inference_server.core.options import PrefillMode, SchedulerOptions
from inference_server.core.plan import StepKind, StepPlan
from inference_server.core.request import FinishReason, RequestStatus, ScheduledRequest


def options(mode: PrefillMode = PrefillMode.MIXED, *, batch: int = 4, budget: int = 16, chunk: int = 8) -> SchedulerOptions:
    return SchedulerOptions(max_batch_size=batch, max_batched_tokens=budget, prefill_mode=mode, prefill_chunk_size=chunk)


def tokens_of(plan: StepPlan, request: ScheduledRequest) -> int:
    return sum(count for row, count in zip(plan.requests, plan.num_new_tokens, strict=True) if row is request)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("mode", PrefillMode)
@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 32, 33])
def test_prompts_around_block_chunk_and_budget_edges(mode: PrefillMode, overlap: bool, length: int) -> None:
    driver = Driver(options(mode), overlap=overlap)
    requests = [driver.add([i] * length, max_tokens=6) for i in range(3)]
    driver.run()
    assert [request.num_output_tokens for request in requests] == [6, 6, 6]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_free_slot_is_refilled_in_the_next_step(overlap: bool) -> None:
    driver = Driver(options(batch=2), overlap=overlap)
    short, _, waiting = driver.add([1, 2], 2), driver.add([3, 4], 20), driver.add([5, 6], 4)
    driver.step_until(lambda: short.finished)
    assert waiting.status is RequestStatus.WAITING
    plan = driver.step()
    assert plan is not None and tokens_of(plan, waiting) == 2
    assert plan.kind is StepKind.MIXED
    driver.run()


@pytest.mark.parametrize("mode", [PrefillMode.MIXED, PrefillMode.CHUNKED])
@pytest.mark.parametrize(("budget", "chunk", "num_long"), [(16, 8, 1), (8, 8, 1), (16, 8, 6), (512, 8, 3)])
def test_a_short_prompt_waits_for_at_most_one_chunk_of_a_long_one(mode: PrefillMode, budget: int, chunk: int, num_long: int) -> None:
    driver = Driver(options(mode, batch=8, budget=budget, chunk=chunk), num_slabs=800)
    longs = [driver.add([i] * 200, max_tokens=2) for i in range(num_long)]
    driver.step()
    before = [request.num_computed_tokens for request in longs]
    short = driver.add([7, 7, 7], max_tokens=2)
    driver.step_until(lambda: short.num_output_tokens == 1)
    assert all(request.num_computed_tokens - count <= chunk for request, count in zip(longs, before, strict=True))
    driver.run()


def test_a_prompt_without_neighbours_fills_the_step_where_no_chunk_is_named() -> None:
    driver = Driver(SchedulerOptions(max_batch_size=4, max_batched_tokens=2048), num_slabs=800)
    driver.add([1] * 2048, max_tokens=1)
    plan = driver.step()
    assert plan is not None and plan.num_tokens == 2048
    driver.run()


def test_a_flood_of_short_prompts_does_not_starve_a_long_one() -> None:
    driver = Driver(options(batch=8, budget=8, chunk=8), num_slabs=400)
    long = driver.add([1] * 100, max_tokens=1)
    steps = 0
    while not long.finished:
        while len(driver.unfinished) < 10:
            driver.add([2, 3, 4, 5], max_tokens=1)
        driver.step()
        steps += 1
    assert steps <= 100 / 4


@pytest.mark.parametrize("mode", [PrefillMode.MONOLITHIC, PrefillMode.CHUNKED, PrefillMode.BATCHED])
def test_other_modes_take_turns_between_prompts_and_decodes(mode: PrefillMode) -> None:
    driver = Driver(options(mode, batch=8, budget=16, chunk=8), num_slabs=400)
    for index in range(6):
        driver.add([index] * 16, max_tokens=30)
    kinds = [plan.kind for plan in (driver.step() for _ in range(10)) if plan is not None]
    assert kinds == [StepKind.PREFILL, StepKind.DECODE] * 5 if mode is not PrefillMode.CHUNKED else StepKind.MIXED not in kinds
    driver.run()


def test_batched_mode_computes_several_whole_prompts_in_one_forward() -> None:
    driver = Driver(options(PrefillMode.BATCHED, budget=16))
    requests = [driver.add([1] * length, max_tokens=2) for length in (5, 6, 7, 4)]
    plan = driver.step()
    assert plan is not None
    assert [tokens_of(plan, request) for request in requests] == [5, 6, 0, 4]
    driver.run()


def test_a_backend_that_cannot_mix_gets_chunks() -> None:
    driver = Driver(options(PrefillMode.MIXED), supports_mixed=False)
    for length in (20, 3, 9):
        driver.add([1] * length, max_tokens=5)
    driver.run()
    assert {plan.kind for plan in driver.plans} == {StepKind.PREFILL, StepKind.DECODE}


def test_single_token_rows_come_first() -> None:
    driver = Driver(options(budget=64))
    driver.add([1, 2], max_tokens=9)
    driver.step()
    driver.add([1, 2, 3], max_tokens=2)
    driver.add([4], max_tokens=2)
    plan = driver.step()
    assert plan is not None and plan.num_new_tokens == [1, 1, 3]
    driver.run()


@pytest.mark.parametrize("overlap", [False, True])
def test_the_victim_is_the_latest_of_the_lowest_priority_and_its_text_is_the_same(overlap: bool) -> None:
    driver = Driver(options(batch=4, budget=64), groups=two_groups(64), num_slabs=16, overlap=overlap)
    urgent = driver.add([1] * 4, 36, priority=-1)
    first, second = driver.add([2] * 4, 36), driver.add([3] * 4, 36)
    patient = driver.add([4] * 4, 36, priority=1)
    driver.step_until(lambda: driver.scheduler.scheduler_stats().preemptions_total > 0)
    assert patient.status is RequestStatus.PREEMPTED
    assert driver.scheduler.waiting() == [patient]
    driver.run()
    preemptions = [request.num_preemptions for request in (urgent, first, second, patient)]
    assert preemptions == sorted(preemptions) and preemptions[0] == 0
    assert [request.num_output_tokens for request in (urgent, first, second, patient)] == [36] * 4


def test_with_overlap_a_better_row_waits_two_steps_for_the_victim_to_come_back() -> None:
    driver = Driver(options(batch=2, budget=64), groups=two_groups(64), block_size=8, num_slabs=8, overlap=True)
    # When the first needs another block, the second can go on for 6 more steps.
    first, second = driver.add([1] * 7, 40), driver.add([2], 40)
    driver.step_until(lambda: driver.scheduler._resting is not None)
    assert driver.scheduler._resting is second
    computed = first.num_computed_tokens
    for _ in range(3):
        driver.step()
    assert second.status is RequestStatus.PREEMPTED
    assert first.num_computed_tokens > computed
    driver.run()


@pytest.mark.parametrize("overlap", [False, True])
def test_preempted_requests_come_back_before_new_ones(overlap: bool) -> None:
    driver = Driver(options(batch=3, budget=64), groups=two_groups(64), num_slabs=10, overlap=overlap)
    driver.add([1] * 4, 24)
    second = driver.add([2] * 4, 24)
    driver.step_until(lambda: second.num_preemptions > 0)
    newcomer = driver.add([3], 2)
    assert driver.scheduler.waiting() == [second, newcomer]
    driver.run()
    assert second.admitted_time is not None and second.num_output_tokens == 24


def test_max_tokens_is_lowered_to_what_fits_alone() -> None:
    driver = Driver(options(), groups=two_groups(64), num_slabs=5)
    longest = driver.scheduler.max_request_tokens
    request = driver.add([1] * 5, max_tokens=1000)
    assert request.sampling.max_tokens == longest + 1 - 5
    driver.run()
    assert request.finish_reason is FinishReason.LENGTH
    assert request.num_tokens == longest + 1


def test_a_prompt_that_never_fits_is_refused_and_one_that_just_does_runs() -> None:
    driver = Driver(options(), num_slabs=5)
    longest = driver.scheduler.max_request_tokens
    with pytest.raises(PromptTooLongError):
        driver.add([1] * (longest + 1), max_tokens=1)
    assert not driver.scheduler.has_unfinished()
    request = driver.add([1] * longest, max_tokens=5)
    driver.run()
    assert request.num_output_tokens == 1


def test_a_late_stop_drops_the_token_in_flight() -> None:
    driver = Driver(options(), overlap=True)
    request = driver.add([1, 2, 3], max_tokens=20, stop_after=4)
    other = driver.add([4, 5, 6], max_tokens=20)
    driver.step_until(lambda: request.finished)
    assert driver.in_flight and request in driver.in_flight[0][0].requests
    driver.run()
    assert request.num_output_tokens == request.num_tokens - 3 == 4
    assert other.num_output_tokens == 20


@pytest.mark.parametrize("overlap", [False, True])
def test_abort_at_every_step(overlap: bool) -> None:
    for num_steps in range(12):
        driver = Driver(options(batch=2, chunk=2), overlap=overlap)
        victim, other, waiting = driver.add([1] * 9, 4), driver.add([2] * 3, 4), driver.add([3] * 3, 4)
        for _ in range(num_steps):
            driver.step()
        for request in (victim, waiting):
            driver.abort(request)
            assert request.finished and request.slot == -1
            assert not any(table.block_ids for table in request.block_tables)
        driver.run()
        assert other.num_output_tokens == 4


def test_stats_follow_the_requests() -> None:
    driver = Driver(options(batch=2, budget=64, chunk=4))
    for length in (2, 6, 5):
        driver.add([1] * length, max_tokens=3)
    assert driver.scheduler.scheduler_stats().waiting_tokens == 13
    driver.step()
    stats = driver.scheduler.scheduler_stats()
    assert (stats.num_waiting, stats.num_prefilling, stats.num_running, stats.admitted_total) == (1, 1, 1, 2)
    assert stats.waiting_by_reason == {"slots": 1}
    assert (stats.waiting_tokens, stats.active_tokens) == (5, 2 + 1 + 6)
    assert driver.scheduler.cache_stats().used_blocks > 0
    driver.run()
    assert driver.scheduler.cache_stats().used_blocks == 0


def test_a_budget_below_one_token_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="max_batched_tokens"):
        Driver(options(batch=4, budget=3))


class OneBlockOff(FakeBackend):
    """Reads a wrong block id once, in the middle of a run."""

    def launch(self, plan: StepPlan) -> FakeStep:
        if plan.step_id == 5:
            block_ids = plan.requests[0].block_tables[self.group].block_ids
            block_ids[-1] += 1
            try:
                return super().launch(plan)
            finally:
                block_ids[-1] -= 1
        return super().launch(plan)

    group = 0


@pytest.mark.parametrize("group", [0, 1])
def test_one_wrong_block_id_turns_this_suite_red(group: int) -> None:
    backend = OneBlockOff(two_groups(8))
    backend.group = group
    driver = Driver(options(), backend=backend)
    driver.add([1, 2, 3, 4, 5], max_tokens=12)
    with pytest.raises(AssertionError, match="a wrong token"):
        driver.run()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_that_is_lost_costs_only_its_requests(overlap: bool) -> None:
    driver = Driver(options(batch=2), overlap=overlap)
    lost = [driver.add([1] * 3, 5), driver.add([2] * 3, 5)]
    waiting = driver.add([3] * 3, 5)
    driver.step()
    plan = driver.scheduler.schedule(0.0)
    assert plan is not None and plan.requests == lost
    for request in plan.requests:
        driver.scheduler.finish(request, FinishReason.ERROR)
        del driver.unfinished[request.request_id]
    driver.check()
    driver.run()
    assert waiting.num_output_tokens == 5
    assert all(request.finish_reason is FinishReason.ERROR and request.num_tokens <= 4 for request in lost)
