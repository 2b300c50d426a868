"""What can be reused, and from where on: the prefix cache by example, through the cache manager."""

import random

import pytest
from cache_driver import BLOCK, FULL_ONLY, WINDOW_8, Cache, prompt

from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.kv_cache.block_pool import BlockPool
from inference_server.kv_cache.eviction import LRU
from inference_server.kv_cache.prefix_cache import PrefixCache
from inference_server.kv_cache.prefix_node import PrefixNode


@pytest.mark.parametrize("groups", [FULL_ONLY, WINDOW_8])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 39, 40, 41])
def test_full_blocks_are_reused_and_one_token_at_least_is_computed(groups: tuple[LayerGroup, ...], length: int) -> None:
    cache = Cache(groups)
    assert cache.run(prompt(0, length)) == 0
    for _ in range(3):
        assert cache.run(prompt(0, length)) == (length - 1) // BLOCK * BLOCK
    assert cache.run([*prompt(0, length), 99]) == length // BLOCK * BLOCK


def test_a_prefix_is_shared_up_to_where_prompts_part() -> None:
    cache = Cache(WINDOW_8)
    cache.run(prompt(0, 32))
    for shared in (15, 16, 17):
        assert cache.run(prompt(0, shared) + prompt(100 * shared, 9)) == shared // BLOCK * BLOCK


def test_a_salt_keeps_tenants_apart() -> None:
    cache = Cache()
    cache.run(prompt(0, 20), salt="a")
    assert cache.cached(prompt(0, 20), salt="b") == cache.cached(prompt(0, 20)) == 0
    assert cache.cached(prompt(0, 20), salt="a") == 16


def test_nothing_is_shared_before_its_step_is_collected() -> None:
    cache = Cache()
    request = cache.start(prompt(0, 20))
    assert cache.extend(request, 20)
    request.num_computed_tokens = 20
    cache.commit(request)
    assert cache.cached(prompt(0, 20)) == 0
    request.num_collected_tokens = 9
    cache.commit(request)
    assert cache.cached(prompt(0, 20)) == 8


@pytest.mark.parametrize("groups", [FULL_ONLY, WINDOW_8])
def test_what_is_prepared_hangs_in_the_tree_as_far_as_it_is_collected(groups: tuple[LayerGroup, ...]) -> None:
    cache = Cache(groups)
    request = cache.start(prompt(0, 41))
    assert cache.extend(request, 41)
    request.num_computed_tokens = 41
    cache.prepare(request, 30)
    cache.prepare(request, 41)
    assert cache.cached(prompt(0, 41)) == 0
    for collected, cached in ((2, 0), (22, 20), (39, 36)):
        request.num_collected_tokens = collected
        cache.commit(request)
        cache.check_integrity([request])
        assert cache.cached(prompt(0, 41)) == cached
    cache.end(request)
    assert cache.cached(prompt(0, 60)) == 36
    assert len(list(cache.prefix._nodes())) == 9


@pytest.mark.parametrize("groups", [FULL_ONLY, WINDOW_8])
def test_what_is_prepared_joins_what_another_cached_meanwhile(groups: tuple[LayerGroup, ...]) -> None:
    cache = Cache(groups)
    first, second = cache.start(prompt(0, 25)), cache.start(prompt(0, 20) + prompt(90, 21))
    assert cache.extend(second, 41)
    second.num_computed_tokens = 41
    cache.prepare(second, 41)
    assert cache.compute(first)
    second.num_collected_tokens = 13
    cache.commit(second)
    assert cache.prefix.duplicates(second) == [node.block for node in cache.prefix._holds[second.request_id].node.path()]
    second.num_collected_tokens = 41
    cache.commit(second)
    cache.check_integrity(cache.running)
    assert cache.cached(prompt(0, 20) + prompt(90, 30)) == 40
    assert cache.cached(prompt(0, 60)) == 24
    assert len(list(cache.prefix._nodes())) == 5 + 1 + 5
    cache.end(second)
    cache.end(first)


def test_sharers_hold_one_copy_and_one_may_leave() -> None:
    cache = Cache(WINDOW_8)
    first = cache.start(prompt(0, 40))
    assert cache.compute(first)
    alone = cache.stats().used_blocks
    second, third = cache.start(prompt(0, 40)), cache.start(prompt(0, 40))
    assert second.block_tables[0].block_ids == first.block_tables[0].block_ids[:9]
    assert cache.stats().used_blocks == alone
    cache.end(second)
    cache.end(first)
    assert cache.compute(third)
    cache.end(third)
    assert cache.stats().used_blocks == 0


def test_two_that_compute_the_same_at_once_leave_one_copy() -> None:
    cache = Cache(WINDOW_8)
    first, second = cache.start(prompt(0, 40)), cache.start(prompt(0, 40) + prompt(90, 8))
    assert cache.compute(first) and cache.compute(second)
    assert cache.prefix.duplicates(second)
    cache.end(first)
    assert cache.cached(prompt(0, 60)) == 40
    cache.end(second)
    assert len(list(cache.prefix._nodes())) == 12
    assert cache.stats().cached_bytes == 12 * 16 + sum(24 for node in cache.prefix._nodes() if node.window_block)


def test_used_cached_and_free_are_all_there_is() -> None:
    cache = Cache(num_slabs=11)
    cache.run(prompt(0, 12))
    cache.compute(cache.start(prompt(50, 8)))
    stats = cache.stats()
    assert (stats.used_blocks, stats.cached_blocks, stats.free_blocks, stats.total_blocks) == (2, 3, 5, 10)


def test_pinned_blocks_are_those_that_are_used_and_cached() -> None:
    cache = Cache(num_slabs=11)
    cache.run(prompt(0, 12))
    assert cache.stats().pinned_blocks == 0
    reader = cache.start(prompt(0, 12) + prompt(50, 8))
    assert cache.stats().pinned_blocks == 3
    assert cache.stats().used_blocks >= 3
    cache.end(reader)
    assert cache.stats().pinned_blocks == 0


@pytest.mark.parametrize("groups", [FULL_ONLY, WINDOW_8])
def test_a_long_prompt_evicts_no_more_at_once_than_block_by_block(groups: tuple[LayerGroup, ...]) -> None:
    histories = []
    for at_once in (True, False):
        cache, rng = Cache(groups, num_slabs=40), random.Random(0)
        if not at_once:
            short = cache.pool.slabs_short
            cache.pool.slabs_short = lambda counts, short=short: min(1, short(counts))  # type: ignore[method-assign, misc]
        history = []
        for _ in range(60):
            request = cache.start(prompt(rng.randrange(12) * 100, rng.randrange(8, 40)))
            num_tokens = len(request.token_ids)
            assert cache.extend(request, num_tokens)
            request.num_computed_tokens = request.num_collected_tokens = num_tokens
            cache.end(request)
            history.append((request.num_cached_tokens, cache.stats().evicted_blocks))
        histories.append(history)
    assert histories[0] == histories[1]
    assert histories[0][-1][1] > 60


def test_hits_misses_and_evictions_are_counted() -> None:
    cache = Cache(num_slabs=11)
    cache.run(prompt(0, 20))
    cache.run(prompt(0, 20))
    cache.run(prompt(100, 40))
    stats = cache.stats()
    assert (stats.hit_tokens, stats.miss_tokens, stats.evicted_blocks) == (16, 20 + 4 + 40, 5)


def test_blocks_that_left_the_window_are_spare_and_the_first_to_go() -> None:
    # A slab holds three full or two window blocks. A sequence of 10 blocks needs 2 of its window blocks to be resumed.
    cache = Cache(WINDOW_8, num_slabs=11)
    request = cache.start(prompt(0, 40))
    assert cache.compute(request)
    assert cache.stats().used_bytes == 10 * 16 + 3 * 24, "what left the window is still in use"
    cache.end(request)
    assert cache.stats().cached_bytes == 10 * 16 + 10 * 24
    assert cache.run(prompt(100, 24)) == 0
    assert cache.cached(prompt(0, 41)) == 40
    assert cache.cached(prompt(0, 25)) == 0, "the window before an earlier point should have been given up"


def test_a_sequence_that_parts_resumes_at_an_earlier_boundary() -> None:
    cache = Cache(WINDOW_8, num_slabs=41)
    system = prompt(0, 16)
    cache.run(system + prompt(100, 24))
    cache.run(system + prompt(200, 24))
    while cache.prefix._windows.spare:
        cache.prefix.evict()
    cache.check_integrity([])
    # The place where the two part is a boundary, from which a third resumes; nothing resumes from the middle of the first any more.
    assert cache.cached(system + prompt(300, 24)) == 16
    assert cache.cached(system + prompt(100, 12) + prompt(300, 9)) == 16
    assert cache.cached(system + prompt(100, 25)) == 40


def test_what_is_computed_anew_fills_the_holes_in_the_window() -> None:
    cache = Cache(WINDOW_8)
    cache.run(prompt(0, 40))
    while cache.prefix._windows.spare:
        cache.prefix.evict()
    assert cache.run(prompt(0, 21)) == 0
    assert cache.cached(prompt(0, 21)) == 20
    assert len(list(cache.prefix._nodes())) == 10


def test_a_chat_that_drops_what_was_generated_resumes_before_it() -> None:
    cache = Cache(WINDOW_8)
    for turn in range(1, 4):
        chat = cache.start(prompt(0, 20 * turn))
        chat.token_ids += prompt(1000 * turn, 24)
        assert cache.compute(chat)
        cache.end(chat)
        while cache.prefix._windows.spare:
            cache.prefix.evict()
        # A fork resumes after the latest prompt, and after an earlier one only while its answer is cached.
        assert cache.cached(prompt(0, 20 * turn) + prompt(500, 20)) == 20 * turn - BLOCK
        assert [node.depth for node in cache.prefix._nodes() if node.is_prompt_end] == [5 * turn - 1]


def test_a_repeated_prompt_takes_the_exact_match() -> None:
    cache = Cache(num_slabs=60)
    for _ in range(2):
        cache.run(prompt(0, 201))
    root = cache.prefix._root
    root.children = CountedDict(root.children)
    assert cache.cached(prompt(0, 201)) == 200
    assert root.children.num_gets == 0
    assert len(cache.prefix._exact) == 1
    cache.clear()
    assert len(cache.prefix._exact) == 0
    assert cache.cached(prompt(0, 201)) == 0


class CountedDict(dict[object, PrefixNode]):
    num_gets = 0

    def get(self, key: object, default: PrefixNode | None = None) -> PrefixNode | None:  # type: ignore[override]
        CountedDict.num_gets += 1
        return super().get(key, default)


def test_a_look_up_costs_what_it_finds_not_what_there_is() -> None:
    cache = Cache(num_slabs=301)
    for start in range(20):
        cache.run(prompt(1000 * start, 40))
    nodes = [cache.prefix._root, *cache.prefix._nodes()]
    for node in nodes:
        node.children = CountedDict(node.children)
    CountedDict.num_gets = 0
    assert cache.cached(prompt(5000, 12) + prompt(7, 40)) == 12
    assert CountedDict.num_gets == 4


def test_two_windows_or_none_full_have_no_prefix_cache() -> None:
    window = LayerGroup((1,), 1, 1, 1, window=8)
    for groups in [(window,), (FULL_ONLY[0], window, LayerGroup((2,), 1, 1, 1, window=4)), (FULL_ONLY[0], FULL_ONLY[0])]:
        assert not PrefixCache.supports(groups)
        with pytest.raises(ValueError, match="full-attention"):
            PrefixCache(BlockPool(KVLayout(groups, BLOCK, 9)), LRU())


def test_the_integrity_check_sees_a_node_that_lost_its_block() -> None:
    cache = Cache()
    cache.run(prompt(0, 12))
    next(cache.prefix._nodes()).block = 50
    with pytest.raises(AssertionError):
        cache.check_integrity([])
