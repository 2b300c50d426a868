"""Block tables: what they cover at the edges of blocks and of windows, and the bounds that admission relies on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.kv_cache.block_pool import BlockPool
from inference_server.kv_cache.cache_manager import CacheManager

BLOCK = 4


def groups(window: int) -> tuple[LayerGroup, ...]:
    return LayerGroup((0, 1), 1, 1, 1), LayerGroup((2, 3, 4), 1, 1, 1, window=window)


def make_cache(window: int = 8, num_slabs: int = 64) -> CacheManager:
    return CacheManager(BlockPool(KVLayout(groups(window), BLOCK, num_slabs)))


def make_request(num_tokens: int = 1, name: str = "r") -> ScheduledRequest:
    return ScheduledRequest(name, [1] * num_tokens, SamplingParams(), arrival_time=0.0)


@pytest.mark.parametrize(("num_tokens", "blocks"), [(1, 1), (BLOCK - 1, 1), (BLOCK, 1), (BLOCK + 1, 2), (2 * BLOCK, 2), (2 * BLOCK + 1, 3)])
def test_extend_covers_exactly_the_tokens(num_tokens: int, blocks: int) -> None:
    cache, request = make_cache(), make_request()
    assert cache.extend(request, num_tokens)
    assert [len(table.block_ids) for table in request.block_tables] == [blocks, blocks]
    assert cache.extend(request, num_tokens)
    assert [len(table.block_ids) for table in request.block_tables] == [blocks, blocks]
    cache.check_integrity([request])


def test_extend_takes_nothing_when_one_group_would_go_short() -> None:
    cache, request = make_cache(num_slabs=3), make_request()
    assert not cache.extend(request, 3 * BLOCK)
    assert all(not table.block_ids for table in request.block_tables)
    assert cache.stats().used_bytes == 0
    assert cache.extend(request, 2 * BLOCK)


@pytest.mark.parametrize("window", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_a_block_falls_out_with_the_last_token_that_can_read_it(window: int) -> None:
    for computed in range(6 * BLOCK):
        cache, request = make_cache(window), make_request()
        assert cache.extend(request, 6 * BLOCK)
        request.num_computed_tokens = computed
        cache.drop_out_of_window(request)
        full, windowed = (table.block_ids for table in request.block_tables)
        # The next token is at position `computed` and reads `window` tokens, itself included.
        oldest_read = max(0, computed - window + 1)
        assert all(full)
        assert [block != 0 for block in windowed] == [(i + 1) * BLOCK > oldest_read for i in range(6)]
        cache.check_integrity([request])


def test_dropping_step_by_step_frees_each_block_once() -> None:
    cache, request = make_cache(window=BLOCK + 1), make_request()
    for computed in range(40):
        request.num_computed_tokens = computed
        cache.drop_out_of_window(request)
        assert cache.extend(request, computed + 1)
        cache.check_integrity([request])
        live = sum(1 for block in request.block_tables[1].block_ids if block)
        assert live <= cache.peak_blocks(computed + 1, chunk_tokens=1)[1]
    cache.free(request)
    cache.free(request)
    cache.check_integrity([])
    assert cache.stats().used_bytes == 0


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3 * BLOCK), st.integers(1, 3 * BLOCK), st.lists(st.integers(1, 3 * BLOCK), min_size=1, max_size=12))
def test_no_run_holds_more_than_its_peak(window: int, chunk: int, steps: list[int]) -> None:
    cache, request = make_cache(window), make_request()
    sizes = [min(step, chunk) for step in steps]
    peak = cache.peak_blocks(sum(sizes), chunk)
    for size in sizes:
        cache.drop_out_of_window(request)
        assert cache.extend(request, request.num_computed_tokens + size)
        request.num_computed_tokens += size
        assert all(sum(map(bool, t.block_ids)) <= most for t, most in zip(request.block_tables, peak, strict=True))


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 12), st.integers(1, 3 * BLOCK), st.integers(1, 3 * BLOCK))
def test_the_longest_request_runs_alone_and_one_block_more_does_not(num_slabs: int, window: int, chunk: int) -> None:
    cache = make_cache(window, num_slabs)
    longest = cache.max_request_tokens(chunk)
    assert not cache._pool.fits_when_empty(cache.peak_blocks(longest + 1, chunk))
    request = make_request()
    while request.num_computed_tokens < longest:
        target = min(longest, request.num_computed_tokens + chunk)
        cache.drop_out_of_window(request)
        assert cache.extend(request, target), "alone in the pool, a request went short"
        request.num_computed_tokens = target


def test_stats_count_in_blocks_of_the_first_group() -> None:
    cache, request = make_cache(num_slabs=5), make_request()
    assert cache.extend(request, BLOCK)
    stats = cache.stats()
    # One block of 16 bytes and one of 24, in slabs of 48 bytes.
    assert (stats.total_bytes, stats.used_bytes) == (4 * 48, 40)
    assert (stats.total_blocks, stats.used_blocks, stats.free_blocks) == (12, 3, 9)


def test_the_integrity_check_sees_a_wrong_table() -> None:
    cache, request, other = make_cache(), make_request(), make_request(name="other")
    assert cache.extend(request, 2 * BLOCK) and cache.extend(other, 2 * BLOCK)
    request.block_tables[0].block_ids[0] = other.block_tables[0].block_ids[0]
    with pytest.raises(AssertionError):
        cache.check_integrity([request, other])
