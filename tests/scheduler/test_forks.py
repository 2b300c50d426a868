"""Requests that share one prompt: what they cost, which tokens they get, and what becomes of them in every state of their parent."""

import random

import pytest
from scheduler_driver import Driver, two_groups

from inference_server.core.kv_layout import LayerGroup
from inference_server.core.options import PolicyName, PrefillMode, SchedulerOptions
from inference_server.core.request import FinishReason, RequestStatus
from inference_server.kv_cache.cache_manager import CacheManager
from inference_server.kv_cache.eviction import LRU

FULL_ONLY = (LayerGroup((0,), 1, 1, 1),)
BLOCK = 4


def make_driver(**fields: object) -> Driver:
    options = SchedulerOptions(**{"max_batch_size": 8, "max_batched_tokens": 32, "prefill_chunk_size": 8, **fields.pop("options", {})})
    return Driver(options, **fields)


def prompt_of(length: int) -> list[int]:
    return [(7 * i + length) % 61 for i in range(length)]


def copies(driver: Driver) -> list[tuple[int, int, int]]:
    return [tuple(copy) for plan in driver.plans for copy in plan.block_copies]


def num_computed(driver: Driver) -> int:
    return sum(plan.num_tokens for plan in driver.plans)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("eviction", [None, LRU()])
@pytest.mark.parametrize("mode", list(PrefillMode))
@pytest.mark.parametrize("window", [1, 5, 9])
def test_a_prompt_is_computed_once_whatever_its_length(window: int, mode: PrefillMode, eviction: LRU | None, overlap: bool) -> None:
    for length in (1, 2, 4, 5, 8, 9, 13):
        driver = make_driver(groups=two_groups(window), eviction=eviction, overlap=overlap, options={"prefill_mode": mode})
        outputs = [6, 9, 1, 14]
        group = driver.add_group(prompt_of(length), outputs)
        driver.run()
        assert [request.num_output_tokens for request in group] == outputs
        # Each child computes the last token of the prompt, and no request computes its own last token.
        assert num_computed(driver) == length + len(group) - 1 + sum(outputs) - len(group)
        # If a block begins with the last token of the prompt, it holds nothing from before to copy.
        expected = 0 if (length - 1) % BLOCK == 0 else (len(group) - 1) * 2
        assert len(copies(driver)) == expected


@pytest.mark.parametrize("eviction", [None, LRU()])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("length", "num_blocks"), [(13, 3 + 4), (14, 3 + 4), (15, 3 + 4), (16, 3 + 4 + 1)])
def test_four_choices_cost_one_prompt_and_four_tails(length: int, num_blocks: int, overlap: bool, eviction: LRU | None) -> None:
    driver = make_driver(groups=FULL_ONLY, overlap=overlap, eviction=eviction)
    group = driver.add_group(prompt_of(length), [4] * 4)
    driver.step_until(lambda: all(request.status is RequestStatus.RUNNING for request in group))
    # The parent, whose first token came with its prompt, is one token ahead.
    assert driver.pool.num_used(0) == num_blocks
    tables = [request.block_tables[0].block_ids for request in group]
    assert len({tuple(table[:3]) for table in tables}) == 1
    assert len({table[3] for table in tables}) == 4
    driver.run()
    assert driver.pool.num_used(0) == 0


def test_window_blocks_are_shared_too() -> None:
    driver = make_driver(groups=two_groups(8))
    group = driver.add_group(prompt_of(18), [3] * 4)
    driver.step_until(lambda: all(request.status is RequestStatus.RUNNING for request in group))
    # The next token of each is at position 18 and reads from 11 on: blocks 2 and 3, and a tail.
    assert (driver.pool.num_used(0), driver.pool.num_used(1)) == (4 + 4, 2 + 4)
    driver.run()


def skip_copies(monkeypatch: pytest.MonkeyPatch, group: int) -> None:
    real = CacheManager.take_copies
    monkeypatch.setattr(CacheManager, "take_copies", lambda cache, request: [c for c in real(cache, request) if c.group != group])


@pytest.mark.parametrize("skipped", [0, 1])
def test_a_copy_that_is_skipped_is_a_wrong_token(skipped: int, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_copies(monkeypatch, skipped)
    driver = make_driver()
    driver.add_group(prompt_of(11), [4] * 2)
    with pytest.raises(AssertionError, match="a wrong token"):
        driver.run()


def test_n_counts_n_places_of_the_queue() -> None:
    driver = make_driver(options={"max_batch_size": 2, "max_batched_tokens": 8})
    driver.add_group(prompt_of(9), [4] * 5)
    stats = driver.scheduler.scheduler_stats()
    assert (stats.num_waiting, stats.num_active) == (5, 0)
    driver.step()
    stats = driver.scheduler.scheduler_stats()
    assert (stats.num_waiting, stats.num_active) == (4, 1)
    assert stats.waiting_by_reason == {"prompt": 4}
    driver.run()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("eviction", [None, LRU()])
def test_more_choices_than_slots(eviction: LRU | None, overlap: bool) -> None:
    driver = make_driver(eviction=eviction, overlap=overlap, options={"max_batch_size": 3, "max_batched_tokens": 8})
    group = driver.add_group(prompt_of(14), [5] * 8)
    driver.run()
    assert [request.num_output_tokens for request in group] == [5] * 8
    # Those that found no slot share the prompt with the first of them, instead of computing it each.
    prompts = sum(1 for plan in driver.plans for start in plan.starts if start == 0)
    assert prompts == (1 if eviction else 3)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("stop_after", [1, 2, 5])
def test_a_parent_that_ends_early_leaves_its_prompt_to_its_children(stop_after: int, overlap: bool) -> None:
    for length in (3, 8, 9, 11):
        driver = make_driver(overlap=overlap)
        parent = driver.add(prompt_of(length), 9, stop_after=stop_after)
        children = [driver.add(prompt_of(length), 9, parent=parent) for _ in range(3)]
        driver.run()
        assert parent.num_output_tokens == stop_after
        assert [child.num_output_tokens for child in children] == [9] * 3
        assert sum(1 for plan in driver.plans for start in plan.starts if start == 0) == (1 if length > 1 else 4)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("eviction", [None, LRU()])
@pytest.mark.parametrize("victims", [[0], [2], [0, 1], [0, 1, 2, 3]])
def test_an_abort_in_any_state(victims: list[int], eviction: LRU | None, overlap: bool) -> None:
    for num_steps in range(9):
        driver = make_driver(eviction=eviction, overlap=overlap, options={"max_batch_size": 3, "max_batched_tokens": 8})
        group = driver.add_group(prompt_of(14), [5] * 4)
        for _ in range(num_steps):
            driver.step()
        for victim in victims:
            driver.abort(group[victim])
            driver.abort(group[victim])
        driver.run()
        assert len(driver.finished) == 4
        kept = [request for index, request in enumerate(group) if index not in victims]
        assert all(request.finish_reason is FinishReason.LENGTH for request in kept)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("length", [15, 16])
def test_a_tail_that_its_parent_has_filled_and_cached_is_let_go_of(length: int, overlap: bool) -> None:
    """With one prompt a step, the children have their turns while the parent goes on decoding."""
    for num_steps in range(12):
        driver = make_driver(eviction=LRU(), overlap=overlap, options={"prefill_mode": PrefillMode.MONOLITHIC})
        group = driver.add_group(prompt_of(length), [9] * 4)
        for _ in range(num_steps):
            driver.step()
        for request in group:
            driver.abort(request)
        driver.cache.clear()
        driver.check()
        assert driver.scheduler.cache_stats().cached_blocks == 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("eviction", [None, LRU()])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_preemption_in_any_state(victim: int, eviction: LRU | None, overlap: bool) -> None:
    for num_steps in range(9):
        driver = make_driver(eviction=eviction, overlap=overlap, options={"max_batched_tokens": 8})
        group = driver.add_group(prompt_of(14), [5] * 4)
        for _ in range(num_steps):
            driver.step()
        request = group[victim]
        if request.slot >= 0 and request.num_computed_tokens == request.num_collected_tokens:
            driver.scheduler._preempt(request)
            driver.check()
        driver.run()
        assert [request.num_output_tokens for request in group] == [5] * 4


@pytest.mark.parametrize("policy", list(PolicyName))
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("eviction", [None, LRU()])
def test_memory_too_short_for_the_children(eviction: LRU | None, overlap: bool, policy: PolicyName) -> None:
    num_preemptions = 0
    for num_slabs in range(6, 14):
        options = {"max_batched_tokens": 12, "scheduling_policy": policy}
        driver = make_driver(groups=two_groups(9), num_slabs=num_slabs, eviction=eviction, overlap=overlap, options=options)
        outputs = [min(12, driver.scheduler.max_request_tokens - 8)] * 6
        group = driver.add_group(prompt_of(9), outputs)
        driver.run()
        assert [request.num_output_tokens for request in group] == outputs
        num_preemptions += driver.scheduler.scheduler_stats().preemptions_total
    assert num_preemptions > 0


def test_a_child_added_after_its_parent_has_answered_is_a_request_of_its_own() -> None:
    driver = make_driver(eviction=LRU())
    parent = driver.add(prompt_of(14), 9)
    driver.step_until(lambda: parent.num_output_tokens == 2)
    child = driver.add(prompt_of(14), 9, parent=parent)
    driver.run()
    late = driver.add(prompt_of(14), 9, parent=parent)
    driver.run()
    assert (child.num_cached_tokens, late.num_cached_tokens) == (12, 12)


def test_what_children_share_is_neither_a_hit_nor_a_miss_and_charged_to_nobody() -> None:
    driver = make_driver(eviction=LRU())
    group = driver.add_group(prompt_of(14), [2] * 4, key="A")
    driver.run()
    stats = driver.scheduler.cache_stats()
    assert (stats.hit_tokens, stats.miss_tokens) == (0, 14)
    assert [request.num_cached_tokens for request in group] == [0, 13, 13, 13]
    (share,) = driver.scheduler.scheduler_stats().fairness
    assert share.served == 14 + 3 + 2 * 8


def test_a_group_is_admitted_as_one() -> None:
    """While their prompt is computed, children count as admitted."""
    driver = make_driver()
    group = driver.add_group(prompt_of(30), [2] * 3)
    assert [request.admitted_time for request in group] == [None] * 3
    driver.step()
    assert [request.admitted_time for request in group] == [0.0] * 3
    driver.run()


@pytest.mark.parametrize("overlap", [False, True])
def test_random_schedules_with_forks(overlap: bool) -> None:
    rng = random.Random(23)
    num_copies = num_preemptions = num_hits = 0
    for _ in range(25):
        batch = rng.randint(1, 8)
        options = SchedulerOptions(
            max_batch_size=batch,
            max_batched_tokens=batch + rng.randint(0, 12),
            prefill_mode=rng.choice(list(PrefillMode)),
            prefill_chunk_size=rng.randint(1, 10),
            scheduling_policy=rng.choice(list(PolicyName)),
        )
        driver = Driver(
            options,
            groups=rng.choice([FULL_ONLY, *map(two_groups, (1, 3, 4, 9))]),
            block_size=rng.choice([1, 2, 4]),
            num_slabs=rng.randint(6, 30),
            overlap=overlap,
            eviction=rng.choice([None, LRU()]),
        )
        longest = driver.scheduler.max_request_tokens
        beginning = [rng.randrange(3) for _ in range(longest)]
        for _ in range(40):
            choice = rng.random()
            if choice < 0.25:
                prompt = beginning[: rng.randint(1, min(longest, 14))] + [rng.randrange(3) for _ in range(rng.randint(0, 2))]
                if len(prompt) <= longest:
                    outputs = [rng.randint(1, 20) for _ in range(rng.choice([1, 2, 3, 5]))]
                    driver.add_group(prompt, outputs, stop_after=rng.randint(1, 20), priority=rng.randrange(2), key=rng.choice("AB"))
            elif choice < 0.35 and driver.unfinished:
                driver.abort(rng.choice(list(driver.unfinished.values())))
            else:
                for _ in range(rng.randint(1, 5)):
                    driver.step()
        driver.run()
        assert len(driver.finished) == driver.num_added
        num_copies += len(copies(driver))
        num_hits += driver.scheduler.cache_stats().hit_tokens
        num_preemptions += driver.scheduler.scheduler_stats().preemptions_total
    assert num_copies > 60 and num_preemptions > 8 and num_hits > 150
