"""What can be reused, from where, and what goes first: the prefix cache by example, through the cache manager's books."""

from collections.abc import Sequence

import pytest

from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.kv_cache.block_pool import BlockPool
from inference_server.kv_cache.cache_manager import CacheManager
from inference_server.kv_cache.eviction import H2O, LRU, EvictionPolicy, SinkLRU
from inference_server.kv_cache.prefix_cache import PrefixCache
from inference_server.kv_cache.prefix_names import PrefixNames
from inference_server.kv_cache.prefix_node import PrefixNode

BLOCK = 4
FULL_ONLY = (LayerGroup((0,), 1, 1, 1),)
WINDOW_8 = (LayerGroup((0, 1), 1, 1, 1), LayerGroup((2, 3, 4), 1, 1, 1, window=8))


class Cache(CacheManager):
    """A cache manager that runs requests as a scheduler would, one block a step."""

    def __init__(
        self,
        groups: tuple[LayerGroup, ...] = FULL_ONLY,
        num_slabs: int = 101,
        policy: EvictionPolicy | None = None,
        names: PrefixNames | None = None,
    ) -> None:
        self.pool = BlockPool(KVLayout(groups, BLOCK, num_slabs))
        self.prefix = PrefixCache(self.pool, policy or LRU(), names)
        super().__init__(self.pool, self.prefix)
        self.running: list[ScheduledRequest] = []
        self.num_started = 0

    def start(self, token_ids: Sequence[int], salt: str = "") -> ScheduledRequest:
        self.num_started += 1
        request = ScheduledRequest(f"r{self.num_started}", list(token_ids), SamplingParams(), arrival_time=0.0, cache_salt=salt)
        self.match_prefix(request)
        self.count_hits(request)
        self.running.append(request)
        self.check_integrity(self.running)
        return request

    def compute(self, request: ScheduledRequest, num_tokens: int | None = None) -> bool:
        """Up to so many tokens, collected; False if the memory ends before."""
        end = len(request.token_ids) if num_tokens is None else num_tokens
        while request.num_computed_tokens < end:
            target = min(end, (request.num_computed_tokens // BLOCK + 1) * BLOCK)
            self.drop_out_of_window(request)
            if not self.extend(request, target):
                return False
            request.num_computed_tokens = request.num_collected_tokens = target
            self.commit(request)
            self.check_integrity(self.running)
        return True

    def end(self, request: ScheduledRequest) -> None:
        self.running.remove(request)
        self.free(request)
        self.check_integrity(self.running)

    def run(self, token_ids: Sequence[int], salt: str = "") -> int:
        """The tokens that were cached."""
        request = self.start(token_ids, salt)
        assert self.compute(request)
        self.end(request)
        return request.num_cached_tokens

    def cached(self, token_ids: Sequence[int], salt: str = "") -> int:
        """What a request of these tokens would find, nothing else changed but the times of use."""
        request = self.start(token_ids, salt)
        self.end(request)
        return request.num_cached_tokens


def prompt(start: int, num_tokens: int) -> list[int]:
    return list(range(start, start + num_tokens))


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


def test_hits_misses_and_evictions_are_counted() -> None:
    cache = Cache(num_slabs=11)
    cache.run(prompt(0, 20))
    cache.run(prompt(0, 20))
    cache.run(prompt(100, 40))
    stats = cache.stats()
    assert (stats.hit_tokens, stats.miss_tokens, stats.evicted_blocks) == (16, 20 + 4 + 40, 5)


def test_blocks_that_left_the_window_are_spare_and_the_first_to_go() -> None:
    # Slabs of three full or two window blocks; a sequence of 10 blocks needs 2 of its window blocks to be resumed.
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
    # Where the two part is a boundary; the middle of the first is none any more.
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
        # Behind the latest prompt, and behind an earlier one only while its answer is there for a fork.
        assert cache.cached(prompt(0, 20 * turn) + prompt(500, 20)) == 20 * turn - BLOCK
        assert [node.depth for node in cache.prefix._nodes() if node.is_prompt_end] == [5 * turn - 1]


def test_children_go_before_parents() -> None:
    cache = Cache()
    cache.run(prompt(0, 20))
    for left in (16, 12, 8, 4, 0):
        assert cache.prefix.evict()
        assert cache.cached(prompt(0, 21)) == left
    assert not cache.prefix.evict()
    assert cache.stats().cached_blocks == 0


def test_what_is_in_use_cannot_be_evicted() -> None:
    cache = Cache(WINDOW_8, num_slabs=10)
    request = cache.start(prompt(0, 48))
    assert cache.compute(request)
    while cache.prefix.evict():
        cache.check_integrity(cache.running)
    other = cache.start(prompt(100, 40))
    assert not cache.compute(other)
    assert cache.stats().used_bytes <= cache.stats().total_bytes
    cache.end(other)
    cache.end(request)
    assert cache.cached(prompt(0, 49)) == 48


@pytest.mark.parametrize(("policy", "survivor"), [(LRU(), 200), (SinkLRU(2), 0)])
def test_sink_lru_spares_the_start_of_the_oldest_prompt(policy: EvictionPolicy, survivor: int) -> None:
    cache = Cache(policy=policy)
    cache.run(prompt(0, 8))
    cache.run(prompt(200, 16))
    cache.prefix.evict()
    cache.prefix.evict()
    # LRU takes both blocks of the older prompt; SinkLRU the two of the newer one that are no sinks.
    assert (cache.cached(prompt(0, 9)), cache.cached(prompt(200, 17))) == ((0, 16) if survivor else (8, 8))


def test_sinks_go_when_nothing_else_is_left() -> None:
    cache = Cache(num_slabs=11, policy=SinkLRU(4))
    cache.run(prompt(0, 16))
    cache.run(prompt(100, 16))
    assert cache.run(prompt(200, 40)) == 0
    assert cache.cached(prompt(0, 17)) == cache.cached(prompt(100, 17)) == 0


def masses(cache: Cache, by_depth: dict[tuple[int, int], float]) -> list[float]:
    """By block: that of the nodes whose first token and depth are named."""
    mass = [0.0] * cache.pool.layout.num_blocks(0)
    for node in cache.prefix._nodes():
        mass[node.block] = by_depth.get((int(node.path()[0].key[1]), node.depth), 0.0)
    return mass


@pytest.mark.parametrize(("policy", "left"), [(LRU(), (0, 16)), (H2O(), (8, 8))])
def test_h2o_spares_the_branch_that_was_attended_to(policy: EvictionPolicy, left: tuple[int, int]) -> None:
    cache = Cache(policy=policy)
    cache.run(prompt(0, 8))
    cache.run(prompt(200, 16))
    # The older prompt's hitter is not its leaf, and outweighs all of the newer one.
    cache.prefix.observe_mass(masses(cache, {(0, 1): 5.0, (200, 1): 1.0, (200, 4): 2.0}))
    for _ in range(2):
        cache.prefix.evict()
        cache.check_integrity([])
    assert (cache.cached(prompt(0, 9)), cache.cached(prompt(200, 17))) == left


def test_h2o_follows_the_latest_mass_and_gives_up_a_whole_branch_before_the_next() -> None:
    cache = Cache(policy=H2O())
    system = prompt(0, 8)
    for start in (100, 200):
        cache.run(system + prompt(start, 12))
    mass = [0.0] * cache.pool.layout.num_blocks(0)
    for second, first in ((1.0, 2.0), (2.0, 1.0)):
        for node in cache.prefix._nodes():
            mass[node.block] = {100: first, 200: second}.get(int(node.path()[2].key[0]) if node.depth == 3 else -1, 0.0)
        cache.prefix.observe_mass(mass)
    for _ in range(3):
        cache.prefix.evict()
    assert (cache.cached(system + prompt(100, 13)), cache.cached(system + prompt(200, 13))) == (8, 20)


def test_h2o_keeps_what_is_newer_than_its_measurement_and_evicts_it_by_lru() -> None:
    cache = Cache(policy=H2O())
    cache.run(prompt(0, 8))
    cache.prefix.observe_mass([9.0] * cache.pool.layout.num_blocks(0))
    cache.run(prompt(100, 8))
    cache.run(prompt(200, 8))
    for expected in ((4, 8, 8), (0, 8, 8), (0, 4, 8), (0, 0, 8)):
        cache.prefix.evict()
        nodes = [node for node in cache.prefix._nodes() if not node.children]
        found = {int(node.path()[0].key[1]): 4 * node.depth for node in nodes}
        assert tuple(found.get(start, 0) for start in (0, 100, 200)) == expected


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
