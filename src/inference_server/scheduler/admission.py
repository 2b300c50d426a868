"""Which waiting requests may start: enough memory for what they are known to need, and not more active tokens than allowed.

A prompt counts whole, not by its first chunk, and so do the blocks that admitted prompts have yet to take. No memory is reserved for
output: a watermark of slabs stays free for running requests to grow into, and where that was too little, a request is preempted. Each
preemption adds headroom to the watermark and each request that ends takes some away, so that who is admitted next is not preempted at once.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil

from inference_server.core.request import ScheduledRequest
from inference_server.kv_cache.cache_manager import CacheManager
from inference_server.kv_cache.prefix_node import PrefixNode
from inference_server.scheduler.active_batch import ActiveBatch

_HEADROOM_PER_ROW = 0.25
_HEADROOM_KEPT = 0.9
_MOST_HEADROOM = 0.3


class HoldReason(StrEnum):
    """Why a request waits. PROMPT: another request of the same prompt computes it."""

    SLOTS = "slots"
    ACTIVE_TOKENS = "active_tokens"
    KV_BLOCKS = "kv_blocks"
    PROMPT = "prompt"


@dataclass(slots=True)
class Holds:
    """Why requests wait, as one pass found. Those that it did not look at count as held for the same reason as the last that it did."""

    counts: dict[HoldReason, int] = field(default_factory=dict)
    last: HoldReason = HoldReason.SLOTS

    def add(self, reason: HoldReason) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.last = reason

    def by_reason(self, num_waiting: int) -> dict[str, int]:
        """How many of the `num_waiting` requests wait for each reason; some that the pass counted may have gone since."""
        left, known = num_waiting, {}
        for reason, count in self.counts.items():
            known[reason.value] = min(count, left)
            left -= known[reason.value]
        known[self.last.value] = known.get(self.last.value, 0) + left
        return {reason: count for reason, count in known.items() if count}


class AdmissionController:
    """The gates between the queue and the batch, and how long a request that they hold may be overtaken.

    watermark: share of the pool that an admission must leave free. ageing_s: seconds at the gates after which no request of the
    same priority passes the one that is held, so that it gets in when those before it have ended.
    """

    def __init__(
        self, cache: CacheManager, *, max_active_tokens: int | None = None, watermark: float = 0.01, ageing_s: float = 5.0
    ) -> None:
        self.cache = cache
        self.max_active_tokens = max_active_tokens
        self._ageing_s = ageing_s
        self._watermark_slabs = ceil(watermark * cache.num_slabs)
        self._headroom_slabs = 0.0
        self._outlooks: dict[str, _Outlook] = {}
        self._oldest_held: ScheduledRequest | None = None
        self._held_since = 0.0

    def open(self, batch: ActiveBatch, chunk_tokens: int) -> "AdmissionPass":
        """Start one scheduling pass, given what is admitted already. chunk_tokens: the most tokens of one prompt that a step computes."""
        pending = [0] * len(self.cache.peak_blocks(0, 1))
        recomputing = False
        for request in batch.prefilling:
            pending = _add(pending, self.cache.pending_blocks(request, chunk_tokens))
            recomputing |= request.num_preemptions > 0
        return AdmissionPass(self, len(batch), batch.num_tokens, chunk_tokens, pending, recomputing)

    @property
    def spare_slabs(self) -> int:
        """What an admission must leave free: the watermark and the headroom."""
        return self._watermark_slabs + int(self._headroom_slabs)

    def preempted(self, num_active: int) -> None:
        """A request was preempted; `num_active` rows are left, and will grow."""
        most = _MOST_HEADROOM * self.cache.num_slabs
        self._headroom_slabs = min(self._headroom_slabs + _HEADROOM_PER_ROW * num_active, most)

    def choose(self, head: ScheduledRequest | None, now: float) -> ScheduledRequest | None:
        """The request to try next: the queue's head, or instead of it one that has been held for `ageing_s`."""
        overdue = self._overdue(now)
        if head is None or overdue is None or head.num_preemptions or head.priority < overdue.priority:
            return head
        return overdue

    def may_pass(self, held: ScheduledRequest, now: float) -> bool:
        """Whether others may be admitted before `held`, the head of the queue. Only one held head at a time ages."""
        if self._oldest_held is None:
            self._oldest_held, self._held_since = held, now
        return self._overdue(now) is None

    def outlook(self, request: ScheduledRequest) -> "_Outlook | None":
        """What was found when memory held the request; None if it did not, or if the request may start from a longer prefix by now."""
        outlook = self._outlooks.get(request.request_id)
        return None if outlook is None or self.cache.may_match_more(outlook.search_end, request) else outlook

    def held(self, request: ScheduledRequest, blocks: list[int], taken_bytes: int) -> None:
        """Note that memory holds the request, which still has its prefix. blocks, taken_bytes: see `_Outlook`."""
        self._outlooks[request.request_id] = _Outlook(blocks, taken_bytes, self.cache.search_end(request))

    def admitted(self, request: ScheduledRequest) -> None:
        """The request is not held any more."""
        self._outlooks.pop(request.request_id, None)
        if self._oldest_held is request:
            self._oldest_held = None

    def ended(self, request: ScheduledRequest) -> None:
        """The request has ended and given back what memory it had."""
        self.admitted(request)
        self._headroom_slabs *= _HEADROOM_KEPT

    def _overdue(self, now: float) -> ScheduledRequest | None:
        return self._oldest_held if now - self._held_since >= self._ageing_s else None


@dataclass(frozen=True, slots=True)
class _Outlook:
    """Why memory held a request.

    blocks: how many it lacked beside its cached prefix, by group. taken_bytes: what of the pool was taken then. search_end: the node at
    which the search for its prefix ended. The request is not tried again while at least as much is taken, or while these blocks alone do
    not fit.
    """

    blocks: list[int]
    taken_bytes: int
    search_end: PrefixNode | None


@dataclass(slots=True)
class AdmissionPass:
    """What is left to give away in one scheduling pass.

    pending: blocks by group that are promised to admitted prompts and not taken yet. recomputing: whether a preempted request computes
    its tokens again; no other is admitted until it is done, so that every preemption is followed by at least one new token.
    """

    controller: AdmissionController
    num_active: int
    active_tokens: int
    chunk_tokens: int
    pending: list[int]
    recomputing: bool

    def admit(self, request: ScheduledRequest, parent: ScheduledRequest | None = None) -> HoldReason | None:
        """Give the request its cached prefix, or the parent's prompt, charge it to the pass and return None; or return what holds it.

        An empty batch admits any request, so none is held for ever. A request that is held may hold a prefix, which the caller has to free.
        """
        reason = self._foresee(request) if self.num_active else None
        if reason is not None:
            return reason
        cache, taken_bytes = self.controller.cache, self._taken_bytes()
        if parent is None:
            cache.match_prefix(request)
        else:
            cache.fork(parent, request)
        blocks = cache.pending_blocks(request, self.chunk_tokens)
        if self.num_active and self._is_short_of(blocks):
            self.controller.held(request, blocks, taken_bytes)
            return HoldReason.KV_BLOCKS
        self.num_active += 1
        self.active_tokens += request.num_tokens
        self.pending = _add(self.pending, blocks)
        self.recomputing |= request.num_preemptions > 0
        return None

    def _foresee(self, request: ScheduledRequest) -> HoldReason | None:
        """A reason that is sure to hold the request, found without looking up its prefix, which takes long for a long prompt."""
        most = self.controller.max_active_tokens
        if most is not None and self.active_tokens + request.num_tokens > most:
            return HoldReason.ACTIVE_TOKENS
        outlook = self.controller.outlook(request)
        if self.recomputing or (outlook and (self._taken_bytes() >= outlook.taken_bytes or self._is_short_of(outlook.blocks))):
            return HoldReason.KV_BLOCKS
        return None

    def _taken_bytes(self) -> int:
        return self.controller.cache.taken_bytes(self.pending, self.controller.spare_slabs)

    def _is_short_of(self, blocks: list[int]) -> bool:
        return not self.controller.cache.can_fit(_add(self.pending, blocks), self.controller.spare_slabs)


def _add(left: list[int], right: list[int]) -> list[int]:
    return [a + b for a, b in zip(left, right, strict=True)]
