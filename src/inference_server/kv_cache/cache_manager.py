"""`CacheManager`: gives requests the blocks they need, in every layer group, and takes them back.

The one place that edits block tables. All groups of a request have tables of equal length, since they index the same
tokens; window groups replace what has left the window by the null block. Decides nothing: the scheduler chooses who gets memory,
and the prefix cache what is worth keeping, and what it gives up when the pool is short.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from inference_server.core.plan import BlockCopy
from inference_server.core.records import CacheStats
from inference_server.core.request import BlockTable, ScheduledRequest
from inference_server.kv_cache.block_pool import BlockPool
from inference_server.kv_cache.prefix_cache import PrefixCache
from inference_server.kv_cache.prefix_node import PrefixNode


class CacheManager:
    """Block tables over one pool. Counts are lists with one entry a layer group."""

    def __init__(self, pool: BlockPool, prefix: PrefixCache | None = None) -> None:
        """prefix: a cache over the same pool; None to cache nothing."""
        self._pool = pool
        self._prefix = prefix
        self._tails: dict[str, list[int]] = {}  # blocks that a fork has yet to copy, one a group
        self._hit_tokens = self._miss_tokens = 0
        self._layout = pool.layout
        self._windows = [group.window for group in pool.layout.groups]
        self.block_size = pool.layout.block_size
        self.num_slabs = pool.layout.num_slabs - 1

    def peak_blocks(self, num_tokens: int, chunk_tokens: int) -> list[int]:
        """The most blocks that a sequence of `num_tokens` holds at once, if no step computes more than `chunk_tokens` of it.

        A chunk of n tokens in a window W reads from its first token back over W - 1 more: n + W - 1 tokens, which touch one
        more block than they fill when they start at the end of one.
        """
        size = self.block_size
        whole = -(-num_tokens // size)
        return [whole if w is None else min(whole, -(-(w + chunk_tokens + size - 2) // size)) for w in self._windows]

    def pending_blocks(self, request: ScheduledRequest, chunk_tokens: int) -> list[int]:
        """How many blocks of each group the request's known tokens will need beyond those that it holds."""
        peaks = self.peak_blocks(len(request.token_ids), chunk_tokens)
        if not request.block_tables:
            return peaks
        missing = max(0, -(-len(request.token_ids) // self.block_size) - len(request.block_tables[0].block_ids))
        live = (sum(map(bool, table.block_ids)) for table in request.block_tables)
        return [min(missing, max(0, peak - held)) for peak, held in zip(peaks, live, strict=True)]

    def taken_bytes(self, counts: Sequence[int], spare_slabs: int = 0) -> int:
        """Bytes of what is used, with `counts` more blocks of each group and `spare_slabs` more slabs."""
        layout = self._layout
        more = sum(count * layout.block_bytes(group) for group, count in enumerate(counts))
        return self._pool.used_bytes + more + spare_slabs * layout.slab_bytes

    def can_fit(self, counts: Sequence[int], spare_slabs: int = 0) -> bool:
        """Whether `counts` more blocks of each group can be had now, by eviction if need be, with `spare_slabs` left over."""
        return self._pool.fits(counts, spare_slabs)

    def max_request_tokens(self, chunk_tokens: int | None) -> int:
        """The most tokens whose KV fits when a sequence runs alone. chunk_tokens: see `peak_blocks`; None if one step may compute all."""
        low, high = 0, self._layout.num_blocks(0) * self.block_size
        while low < high:
            middle = (low + high + 1) // 2
            if self._pool.fits_when_empty(self.peak_blocks(middle, chunk_tokens or middle)):
                low = middle
            else:
                high = middle - 1
        return low

    def match_prefix(self, request: ScheduledRequest) -> None:
        """Let a request that holds nothing start after the longest prefix of its tokens that is cached.

        A request for the log-probabilities of its prompt starts at the beginning, since they come from computing the prompt.
        """
        if self._prefix is None or request.sampling.prompt_logprobs is not None:
            return
        request.block_tables[:] = map(BlockTable, self._prefix.acquire(request))
        num_tokens = len(request.block_tables[0].block_ids) * self.block_size
        request.num_computed_tokens = request.num_collected_tokens = num_tokens

    def fork(self, parent: ScheduledRequest, child: ScheduledRequest) -> None:
        """Let a child that holds nothing start after all but the last token of the parent's prompt, which has been collected.

        It shares the full blocks of these tokens. If the last block is partial, it is kept for the child until `take_copies`.
        """
        self.commit(parent)
        num_tokens = parent.num_prompt_tokens - 1
        num_full, rest = divmod(num_tokens, self.block_size)
        shared = [table.block_ids[:num_full] for table in parent.block_tables]
        child.block_tables[:] = map(BlockTable, shared)
        if rest:
            self._tails[child.request_id] = [table.block_ids[num_full] for table in parent.block_tables]
        for group, table in enumerate(parent.block_tables):
            self._pool.share(group, filter(None, table.block_ids[: num_full + (rest > 0)]))
        if self._prefix is not None:
            self._prefix.fork(parent, child)
        child.num_computed_tokens = child.num_collected_tokens = num_tokens

    def take_copies(self, request: ScheduledRequest) -> list[BlockCopy]:
        """The copies that a fork needs in its newest blocks before the step that writes to them; none for any other request."""
        index = request.num_computed_tokens // self.block_size
        sources = self._drop_tail(request)
        return [BlockCopy(group, source, request.block_tables[group].block_ids[index]) for group, source in enumerate(sources)]

    def search_end(self, request: ScheduledRequest) -> PrefixNode | None:
        """Where the search of `match_prefix` ended, for `may_match_more`."""
        return self._prefix.search_end(request) if self._prefix is not None else None

    def may_match_more(self, search_end: PrefixNode | None, request: ScheduledRequest) -> bool:
        """Whether that search might get further by now. Costs the same for any length of the match."""
        return search_end is not None and self._prefix is not None and self._prefix.may_match_more(search_end, request)

    def count_hits(self, request: ScheduledRequest) -> None:
        """Count the hit and missed tokens of a request at its first admission. What it recomputes after a preemption is no hit."""
        if self._prefix is None:
            return
        request.num_cached_tokens = request.num_computed_tokens
        self._hit_tokens += request.num_cached_tokens
        self._miss_tokens += request.num_prompt_tokens - request.num_cached_tokens

    def prepare(self, request: ScheduledRequest, num_tokens: int) -> None:
        """Do the slow part of committing the request's first `num_tokens` tokens ahead of time."""
        if self._prefix is not None:
            self._prefix.prepare(request, num_tokens)

    def commit(self, request: ScheduledRequest) -> None:
        """Let others start from the full blocks that the request has collected."""
        if self._prefix is not None:
            self._prefix.commit(request)

    def observe_mass(self, block_mass: Sequence[float]) -> None:
        """block_mass: see `StepResult`."""
        if self._prefix is not None:
            self._prefix.observe_mass(block_mass)

    def clear(self) -> None:
        """Forget every prefix that no request uses."""
        while self._prefix is not None and self._prefix.evict():
            pass

    def extend(self, request: ScheduledRequest, num_tokens: int) -> bool:
        """Give the request blocks for its first `num_tokens` tokens in every group. False, and no change, if they do not fit."""
        tables = request.block_tables
        if not tables:
            tables.extend(BlockTable() for _ in self._windows)
        missing = -(-num_tokens // self.block_size) - len(tables[0].block_ids)
        if missing <= 0:
            return True
        counts = [missing] * len(tables)
        blocks = self._pool.allocate(request.request_id, counts)
        if blocks is None:
            if not self._pool.fits(counts):
                return False
            while short := self._pool.slabs_short(counts):
                for _ in range(-(-short // len(counts))):  # one eviction gives up at most a block of each group
                    assert self._prefix is not None and self._prefix.evict(), "the pool counts blocks as unused that cannot be had"
            blocks = self._pool.allocate(request.request_id, counts)
            assert blocks is not None, "the pool is not short of slabs"
        for table, new in zip(tables, blocks, strict=True):
            table.block_ids += new
        return True

    def drop_out_of_window(self, request: ScheduledRequest, *, uncommitted: bool = True) -> bool:
        """Free the blocks that no token from `num_computed_tokens` on can read. Returns whether there were any.

        The counter is the scheduled one: a step in flight still reads what is freed here, and whoever gets the block writes
        it in a later launch. uncommitted: also free blocks of a step in flight, which then cannot be cached when the step is collected.
        """
        kept_from = None if uncommitted or self._prefix is None else request.num_collected_tokens // self.block_size
        dropped = False
        for group, (window, table) in enumerate(zip(self._windows, request.block_tables, strict=False)):
            if window is None:
                continue
            block_ids = table.block_ids
            first_needed = max(0, request.num_computed_tokens - window + 1) // self.block_size
            if kept_from is not None:
                first_needed = min(first_needed, kept_from)
            index = first_needed
            while index > 0 and block_ids[index - 1]:
                index -= 1
            if index == first_needed:
                continue
            self._release(group, block_ids[index:first_needed])
            block_ids[index:first_needed] = [0] * (first_needed - index)
            dropped = True
        return dropped

    def free(self, request: ScheduledRequest) -> None:
        """Take back everything the request holds; what it has collected stays reusable. Idempotent."""
        self.commit(request)
        for group, table in enumerate(request.block_tables):
            self._release(group, [block for block in table.block_ids if block])
            table.block_ids.clear()
        self._drop_tail(request)
        if self._prefix is not None:
            self._prefix.let_go(request)
        self._pool.forget(request.request_id)

    def _drop_tail(self, request: ScheduledRequest) -> list[int]:
        tail = self._tails.pop(request.request_id, [])
        for group, block in enumerate(tail):
            self._release(group, [block])
        if tail and self._prefix is not None:
            self._prefix.tail_released(request, tail[0])
        return tail

    def _release(self, group: int, blocks: list[int]) -> None:
        self._pool.release(group, blocks)
        if self._prefix is not None and self._windows[group] is not None:
            self._prefix.window_released(blocks)

    def stats(self) -> CacheStats:
        """Bytes are those of blocks; block counts are the same bytes in blocks of the first group, rounded up."""
        block_bytes = self._layout.block_bytes(0)
        total, used, cached = self._pool.total_bytes, self._pool.used_bytes, self._pool.unused_bytes
        used_blocks = -(-used // block_bytes)
        taken_blocks = -(-(used + cached) // block_bytes)
        return CacheStats(
            total_blocks=total // block_bytes,
            used_blocks=used_blocks,
            cached_blocks=taken_blocks - used_blocks,
            free_blocks=total // block_bytes - taken_blocks,
            pinned_blocks=min(used_blocks, -(-self._pool.pinned_bytes // block_bytes)),
            total_bytes=total,
            used_bytes=used,
            cached_bytes=cached,
            hit_tokens=self._hit_tokens,
            miss_tokens=self._miss_tokens,
            evicted_blocks=self._prefix.evicted_bytes // block_bytes if self._prefix else 0,
        )

    def check_integrity(self, requests: Iterable[ScheduledRequest]) -> None:
        """Account for every reference by the tables of `requests`. Raises AssertionError with what is off."""
        self._pool.check_integrity()
        if self._prefix is not None:
            self._prefix.check_integrity()
        held: list[Counter[int]] = [Counter() for _ in self._windows]
        for request in requests:
            tables = request.block_tables
            lengths = {len(table.block_ids) for table in tables}
            assert len(lengths) <= 1, f"{request.request_id}: tables of different lengths"
            tail = self._tails.get(request.request_id, [])
            num_blocks = max(lengths, default=0) + bool(tail)
            assert request.num_computed_tokens <= num_blocks * self.block_size, "computed tokens without a block"
            for group, block in enumerate(tail):
                held[group][block] += 1
            for group, table in enumerate(tables):
                self._check_table(group, table.block_ids, request.num_computed_tokens)
                held[group].update(filter(None, table.block_ids))
            held[0].update(self._prefix.duplicates(request) if self._prefix else ())
        for group, counts in enumerate(held):
            assert len(counts) == self._pool.num_used(group), f"group {group}: a used block is in no table"
            assert all(self._pool.ref_count(group, block) == n for block, n in counts.items()), "a reference is unaccounted for"

    def _check_table(self, group: int, block_ids: list[int], num_computed_tokens: int) -> None:
        window = self._windows[group]
        first_needed = 0 if window is None else max(0, num_computed_tokens - window + 1) // self.block_size
        assert all(block_ids[first_needed:]), f"group {group}: a block that is still needed is null"
        blocks = [block for block in block_ids if block]
        assert len(set(blocks)) == len(blocks), f"group {group}: a block stands twice in one table"
