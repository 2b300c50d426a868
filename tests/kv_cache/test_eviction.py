"""What is evicted first when memory runs out: the policies by example."""

import pytest
from cache_driver import BLOCK, WINDOW_8, Cache, prompt

from inference_server.kv_cache.eviction import H2O, LRU, EvictionPolicy, SinkLRU
from inference_server.kv_cache.prefix_node import PrefixNode, key_parts


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
    # LRU evicts both blocks of the older prompt, SinkLRU the two of the newer one that are no sinks.
    assert (cache.cached(prompt(0, 9)), cache.cached(prompt(200, 17))) == ((0, 16) if survivor else (8, 8))


def test_sinks_go_when_nothing_else_is_left() -> None:
    cache = Cache(num_slabs=11, policy=SinkLRU(4))
    cache.run(prompt(0, 16))
    cache.run(prompt(100, 16))
    assert cache.run(prompt(200, 40)) == 0
    assert cache.cached(prompt(0, 17)) == cache.cached(prompt(100, 17)) == 0


def first_id(node: PrefixNode) -> int:
    return key_parts(node.key, BLOCK)[0][0]


def masses(cache: Cache, by_depth: dict[tuple[int, int], float]) -> list[float]:
    """The mass of each block. by_depth: that of the nodes with this first token and depth; all others have none."""
    mass = [0.0] * cache.pool.layout.num_blocks(0)
    for node in cache.prefix._nodes():
        mass[node.block] = by_depth.get((first_id(node.path()[0]), node.depth), 0.0)
    return mass


@pytest.mark.parametrize(("policy", "left"), [(LRU(), (0, 16)), (H2O(), (8, 8))])
def test_h2o_spares_the_branch_that_was_attended_to(policy: EvictionPolicy, left: tuple[int, int]) -> None:
    cache = Cache(policy=policy)
    cache.run(prompt(0, 8))
    cache.run(prompt(200, 16))
    # The older prompt's heavy hitter is not its leaf, and has more mass than all of the newer prompt.
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
            mass[node.block] = {100: first, 200: second}.get(first_id(node.path()[2]) if node.depth == 3 else -1, 0.0)
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
        found = {first_id(node.path()[0]): 4 * node.depth for node in nodes}
        assert tuple(found.get(start, 0) for start in (0, 100, 200)) == expected
