"""The prefix cache under the scheduler: what counts as a hit, who waits for what, and chats that take turns."""

import random

import pytest
from random_schedules import GEMMA_GROUPS
from scheduler_driver import Driver, two_groups

from inference_server.core.kv_layout import KVLayout
from inference_server.core.options import PrefillMode, SchedulerOptions
from inference_server.core.request import RequestStatus
from inference_server.kv_cache.eviction import LRU
from inference_server.kv_cache.prefix_cache import PrefixCache

OPTIONS = SchedulerOptions(max_batch_size=4, max_batched_tokens=16, prefill_chunk_size=8)


def cached_driver(*, overlap: bool = False, num_slabs: int = 64, window: int = 8, options: SchedulerOptions = OPTIONS) -> Driver:
    return Driver(options, groups=two_groups(window), num_slabs=num_slabs, overlap=overlap, eviction=LRU())


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("mode", list(PrefillMode))
@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 32, 33])
def test_a_cached_prompt_computes_the_rest_and_one_token_at_least(mode: PrefillMode, overlap: bool, length: int) -> None:
    options = SchedulerOptions(max_batch_size=4, max_batched_tokens=16, prefill_mode=mode, prefill_chunk_size=8)
    driver = cached_driver(overlap=overlap, options=options)
    driver.add([1] * length, max_tokens=6)
    driver.run()
    driver.plans.clear()
    again = driver.add([1] * length, max_tokens=6)
    driver.run()
    assert again.num_cached_tokens == (length - 1) // 4 * 4
    assert sum(plan.num_tokens for plan in driver.plans) == length - again.num_cached_tokens + 5


@pytest.mark.parametrize("overlap", [False, True])
def test_the_second_turn_of_a_chat_hits_the_first(overlap: bool) -> None:
    driver = cached_driver(overlap=overlap)
    first = driver.add([1, 2, 3, 4, 5], max_tokens=12)
    driver.run()
    # The last token was returned and never computed, so only 16 of the 17 tokens can be cached.
    second = driver.add([*first.token_ids, 6, 7], max_tokens=4)
    driver.run()
    assert second.num_cached_tokens == 16


@pytest.mark.parametrize("overlap", [False, True])
def test_a_token_in_flight_at_a_late_stop_is_never_cached(overlap: bool) -> None:
    driver = cached_driver(overlap=overlap)
    first = driver.add([1, 2, 3, 4], max_tokens=20, stop_after=4)
    driver.run()
    second = driver.add([*first.token_ids, 9], max_tokens=4)
    driver.run()
    # Four output tokens have returned. The KV of the last one was in flight at best, so its block is not full.
    assert second.num_cached_tokens == 4


@pytest.mark.parametrize("overlap", [False, True])
def test_cancelling_one_sharer_leaves_the_other_alone(overlap: bool) -> None:
    for num_steps in range(8):
        driver = cached_driver(overlap=overlap)
        driver.add([1] * 20, max_tokens=2)
        driver.run()
        one, other = driver.add([1] * 20 + [2], max_tokens=9), driver.add([1] * 20 + [3], max_tokens=9)
        for _ in range(num_steps):
            driver.step()
        driver.abort(one)
        driver.run()
        assert other.num_output_tokens == 9


@pytest.mark.parametrize("overlap", [False, True])
def test_what_a_preempted_request_finds_again_is_no_hit(overlap: bool) -> None:
    driver = cached_driver(overlap=overlap, num_slabs=16, window=64, options=SchedulerOptions(max_batch_size=4, max_batched_tokens=64))
    requests = [driver.add([i] * 8, max_tokens=36) for i in range(4)]
    driver.step_until(lambda: any(request.status is RequestStatus.PREEMPTED for request in requests))
    driver.run()
    stats = driver.scheduler.cache_stats()
    assert [request.num_cached_tokens for request in requests] == [0] * 4
    assert (stats.hit_tokens, stats.miss_tokens) == (0, 32)
    assert any(request.num_preemptions for request in requests)


def test_a_preempted_request_resumes_through_the_cache() -> None:
    driver = cached_driver()
    request = driver.add([1] * 20, max_tokens=8)
    driver.add([2] * 4, max_tokens=8)
    driver.step_until(lambda: request.num_output_tokens == 3)
    driver.scheduler._preempt(request)
    driver.check()
    driver.plans.clear()
    driver.step()
    plan = driver.plans[0]
    assert plan.starts[plan.requests.index(request)] == 20
    driver.run()
    assert driver.scheduler.cache_stats().hit_tokens == 0


def test_a_held_request_gives_its_prefix_back() -> None:
    driver = cached_driver(num_slabs=12, window=64)
    driver.add([1] * 12, max_tokens=1)
    driver.run()
    first = driver.add([2] * 20, max_tokens=12)
    driver.step()
    held = driver.add([1] * 12 + [3] * 30, max_tokens=2)
    driver.step()
    assert held.status is RequestStatus.WAITING and held.num_computed_tokens == 0
    assert driver.scheduler.scheduler_stats().waiting_by_reason == {"kv_blocks": 1}
    driver.run()
    assert first.num_output_tokens == 12 and held.num_output_tokens == 2


def test_a_held_request_is_not_looked_up_again_until_something_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = cached_driver(num_slabs=12, window=64)
    beginning = [1] * 12
    driver.add(beginning, max_tokens=1)
    driver.run()
    runner = driver.add([2] * 20, max_tokens=12)
    driver.step()
    looked_up: list[str] = []
    find = PrefixCache._find
    monkeypatch.setattr(PrefixCache, "_find", lambda self, request: looked_up.append(request.request_id) or find(self, request))
    held = driver.add(beginning + [3] * 30, max_tokens=2)
    while not runner.finished:
        driver.step()
    assert looked_up.count(held.request_id) == 1
    driver.run()
    assert held.num_output_tokens == 2 and held.num_cached_tokens == 12


def test_a_held_request_is_looked_up_again_when_its_prefix_has_grown() -> None:
    """Two prompts with the same beginning: the second fits beside the first only once it can share what the first has computed."""
    driver = cached_driver(num_slabs=17, window=64, options=SchedulerOptions(max_batch_size=4, max_batched_tokens=8, prefill_chunk_size=8))
    beginning = [1] * 36
    first = driver.add([*beginning, 5], max_tokens=20)
    second = driver.add([*beginning, 6], max_tokens=4)
    driver.step_until(lambda: second.finished)
    assert not first.finished and second.num_cached_tokens > 0


def test_a_row_that_is_alone_gets_on_however_its_prefix_lies() -> None:
    """A prefix whose blocks lie scattered can leave too few whole slabs, and would do so each time the row started over with it."""
    for seed in range(60):
        rng = random.Random(seed)
        options = SchedulerOptions(max_batch_size=2, max_batched_tokens=rng.randint(3, 12), prefill_chunk_size=rng.randint(1, 6))
        driver = cached_driver(overlap=rng.random() < 0.5, num_slabs=rng.randint(5, 12), window=rng.choice([3, 5, 9, 14]), options=options)
        driver.check_every_step = False
        longest = driver.scheduler.max_request_tokens
        beginning = [rng.randrange(2) for _ in range(longest)]
        for _ in range(12):
            prompt = beginning[: rng.randint(1, longest - 3)] + [rng.randrange(2) for _ in range(rng.randint(0, 3))]
            driver.add(prompt, max_tokens=longest, stop_after=rng.randint(1, longest))
            for _ in range(rng.randint(0, 6)):
                driver.step()
        driver.run()
        driver.check_every_step = True
        driver.check()


def bytes_in_window(driver: Driver) -> int:
    """The most bytes that the running requests may use: full blocks for all their tokens, window blocks for what one chunk reads."""
    full_bytes, window_bytes = (driver.pool.layout.block_bytes(group) for group in (0, 1))
    rows = driver.scheduler._batch.prefilling + driver.scheduler._batch.running
    peaks = [driver.cache.peak_blocks(len(request.block_tables[0].block_ids) * driver.cache.block_size, 64) for request in rows]
    return sum(full * full_bytes + window * window_bytes for full, window in peaks)


def round_robin(factor: float, *, keeps_answers: bool = True, num_sessions: int = 20, num_turns: int = 5) -> float:
    """The share of re-sent tokens that were hits, when `num_sessions` chats take turns and each grows with every turn.

    factor: the pool's bytes, over those of the full layers' KV of all sessions at their end and one window for each.
    keeps_answers: whether the next prompt repeats the answers too; if not, only the prompts, as with models whose thoughts are dropped.
    """
    turn_tokens, output_tokens, block_size = 48, 40, 16
    length, window = num_turns * (turn_tokens + output_tokens), GEMMA_GROUPS[1].window or 0
    session_bytes = length * GEMMA_GROUPS[0].token_bytes + window * GEMMA_GROUPS[1].token_bytes
    layout = KVLayout.from_bytes(GEMMA_GROUPS, block_size, int(factor * num_sessions * session_bytes))
    options = SchedulerOptions(max_batch_size=4, max_batched_tokens=256, prefill_chunk_size=64)
    driver = Driver(options, groups=GEMMA_GROUPS, block_size=block_size, num_slabs=layout.num_slabs + 1, eviction=LRU())
    driver.check_every_step = False
    chats = [[1000 + session] for session in range(num_sessions)]
    resent = hits = 0
    for turn in range(num_turns):
        requests = []
        for session, chat in enumerate(chats):
            prompt = chat + [100 * turn + session + i for i in range(turn_tokens)]
            requests.append(driver.add(prompt, max_tokens=output_tokens))
        while driver.unfinished:
            driver.step()
            assert driver.pool.used_bytes <= bytes_in_window(driver), "blocks that left the window are still in use"
        driver.run()
        # The last block of what is sent again can never be whole, since its last token was not computed.
        resent += sum(len(chat) - 1 for chat in chats)
        hits += sum(request.num_cached_tokens for request in requests)
        chats = [list(request.token_ids if keeps_answers else request.token_ids[: request.num_prompt_tokens]) for request in requests]
    return hits / resent


def test_chats_that_take_turns_find_their_prefixes() -> None:
    rates = [round_robin(factor) for factor in (2.0, 1.2, 0.8)]
    assert rates[0] >= 0.9
    assert rates[0] >= rates[1] > rates[2]
    assert round_robin(2.0, keeps_answers=False) >= 0.9


def test_blocks_out_of_the_window_are_not_in_use() -> None:
    driver = Driver(OPTIONS, groups=GEMMA_GROUPS, block_size=4, num_slabs=400, eviction=LRU())
    request = driver.add([1] * 200, max_tokens=4)
    driver.step_until(lambda: request.status is RequestStatus.RUNNING)
    full, window = (driver.pool.layout.block_bytes(group) for group in (0, 1))
    # The last chunk of 8 tokens reads 63 tokens back: 71 tokens, in at most 18 blocks.
    assert driver.scheduler.cache_stats().used_bytes <= 50 * full + 19 * window
    driver.run()
