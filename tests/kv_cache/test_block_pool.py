"""The pool alone: counts and owners by a model-based state machine, slab sharing between groups by example."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.kv_cache.block_pool import BlockPool

ONE_GROUP = (LayerGroup((0,), 1, 1, 1),)
ONE_TO_TWO = (LayerGroup((0,), 1, 1, 1), LayerGroup((1, 2), 1, 1, 1, window=8))
TWO_TO_THREE = (LayerGroup((0, 1), 1, 1, 1), LayerGroup((2, 3, 4), 1, 1, 1, window=8))


def make_pool(groups: tuple[LayerGroup, ...] = ONE_TO_TWO, num_slabs: int = 6) -> BlockPool:
    return BlockPool(KVLayout(groups, block_size=4, num_slabs=num_slabs))


def slabs_of(pool: BlockPool, group: int, blocks: list[int]) -> set[int]:
    return {block // pool.layout.blocks_per_slab(group) for block in blocks}


class PoolMachine(RuleBasedStateMachine):
    """Every taken block is live once. Blocks fit exactly if the arithmetic of slabs says so, and are free after their last release."""

    @initialize(groups=st.sampled_from([ONE_GROUP, ONE_TO_TWO, TWO_TO_THREE]), num_slabs=st.integers(2, 8))
    def start(self, groups: tuple[LayerGroup, ...], num_slabs: int) -> None:
        self.pool = make_pool(groups, num_slabs)
        self.refs: Counter[tuple[int, int]] = Counter()

    @rule(owner=st.sampled_from("abc"), counts=st.tuples(st.integers(0, 5), st.integers(0, 5)))
    def allocate(self, owner: str, counts: tuple[int, int]) -> None:
        wanted = list(counts[: len(self.pool.layout.groups)])
        fits = self.pool.fits(wanted)
        assert (self.pool.slabs_short(wanted) == 0) == fits
        taken = self.pool.allocate(owner, wanted)
        assert (taken is not None) == fits
        for group, blocks in enumerate(taken or []):
            assert len(blocks) == wanted[group]
            for block in blocks:
                assert block >= self.pool.layout.blocks_per_slab(group), "a block of the reserved slab"
                assert not self.refs[group, block]
                self.refs[group, block] = 1

    @precondition(lambda self: +self.refs)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        group, block = data.draw(st.sampled_from(sorted(+self.refs)))
        self.pool.share(group, [block])
        self.refs[group, block] += 1

    @precondition(lambda self: +self.refs)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        group, block = data.draw(st.sampled_from(sorted(+self.refs)))
        self.pool.release(group, [block])
        self.refs[group, block] -= 1

    @rule(owner=st.sampled_from("abc"))
    def forget(self, owner: str) -> None:
        self.pool.forget(owner)

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity()
        live = +self.refs
        for group in range(len(self.pool.layout.groups)):
            assert self.pool.num_used(group) == sum(1 for g, _ in live if g == group)
        assert all(self.pool.ref_count(group, block) == count for (group, block), count in live.items())
        assert self.pool.used_bytes == sum(self.pool.layout.block_bytes(group) for group, _ in live)
        if not live:
            assert self.pool.num_free_slabs == self.pool.layout.num_slabs - 1

    def teardown(self) -> None:
        for (group, block), count in self.refs.items():
            self.pool.release(group, [block] * count)
        assert self.pool.used_bytes == 0
        self.pool.check_integrity()


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_groups_share_the_arena_without_fixed_shares() -> None:
    pool = make_pool(num_slabs=4)
    (full, _) = pool.allocate("a", [6, 0]) or pytest.fail("the whole arena is the first group's to take")
    assert pool.allocate("b", [0, 1]) is None
    pool.release(0, full)
    assert pool.allocate("b", [0, 3]) is not None
    assert pool.allocate("a", [1, 0]) is None


def test_all_or_nothing_across_groups() -> None:
    pool = make_pool(num_slabs=4)
    assert pool.allocate("a", [3, 2]) is None
    assert pool.num_free_slabs == 3
    assert pool.allocate("a", [2, 2]) is not None


def test_a_request_fills_its_own_slabs_first_and_those_of_others_last() -> None:
    pool = make_pool(TWO_TO_THREE, num_slabs=4)
    first = pool.allocate("a", [1, 0])
    second = pool.allocate("b", [1, 0])
    assert first and second
    more = pool.allocate("a", [2, 0])
    assert more
    assert slabs_of(pool, 0, first[0] + more[0]).isdisjoint(slabs_of(pool, 0, second[0]))
    assert len(slabs_of(pool, 0, first[0] + more[0])) == 1
    fresh = pool.allocate("a", [3, 0])
    assert fresh and slabs_of(pool, 0, fresh[0]).isdisjoint(slabs_of(pool, 0, second[0]))
    last = pool.allocate("a", [2, 0])
    assert last and slabs_of(pool, 0, last[0]) == slabs_of(pool, 0, second[0])
    assert pool.allocate("a", [1, 0]) is None


def test_gaps_of_others_are_used_before_another_group_goes_short() -> None:
    pool = make_pool(TWO_TO_THREE, num_slabs=3)
    assert pool.allocate("a", [1, 0])
    taken = pool.allocate("b", [2, 2])
    assert taken is not None
    assert pool.num_free_slabs == 0


def test_an_owner_finds_the_gaps_in_all_its_slabs() -> None:
    pool = make_pool(TWO_TO_THREE, num_slabs=5)
    (blocks, _) = pool.allocate("a", [9, 0]) or pytest.fail("9 blocks fit")
    pool.release(0, [blocks[0], blocks[3], blocks[6]])
    assert pool.allocate("a", [3, 0])
    assert pool.num_free_slabs == 1


def test_a_freed_block_is_gone_for_good() -> None:
    pool = make_pool()
    ((block,), _) = pool.allocate("a", [1, 0]) or pytest.fail("an empty pool has a block")
    pool.share(0, [block])
    pool.release(0, [block])
    assert pool.ref_count(0, block) == 1
    pool.release(0, [block])
    for misuse in (lambda: pool.release(0, [block]), lambda: pool.share(0, [block]), lambda: pool.release(0, [0])):
        with pytest.raises(ValueError, match="not live"):
            misuse()


def test_an_arena_needs_a_slab_beside_the_reserved_one() -> None:
    with pytest.raises(ValueError, match="at least 2 slabs"):
        make_pool(num_slabs=1)


def test_the_integrity_check_can_fail() -> None:
    pool = make_pool()
    ((block,), _) = pool.allocate("a", [1, 0]) or pytest.fail("an empty pool has a block")
    pool._refs[0][block] = 0
    with pytest.raises(AssertionError):
        pool.check_integrity()
