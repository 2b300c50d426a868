"""Which waiting requests may start: enough memory for what they are known to need, and not more active tokens than allowed.

The whole prompt counts, not its first chunk, and so does what admitted prompts have yet to take. Output is not reserved: a
watermark of free slabs lets running requests grow, and preemption is the answer when that was too little. Each preemption of a
request doubles the room for growth that it waits for, so that it is not preempted again at once.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from inference_server.core.request import ScheduledRequest
from inference_server.kv_cache.cache_manager import CacheManager
from inference_server.scheduler.active_batch import ActiveBatch


class HoldReason(StrEnum):
    """Why a request waits."""

    SLOTS = "slots"
    ACTIVE_TOKENS = "active_tokens"
    KV_BLOCKS = "kv_blocks"


class AdmissionController:
    """The gates between the queue and the batch, and for how long a request that they hold may be overtaken.

    watermark: share of the pool that an admission must leave free.
    """

    def __init__(
        self, cache: CacheManager, *, max_active_tokens: int | None = None, watermark: float = 0.01, ageing_s: float = 5.0
    ) -> None:
        self.cache = cache
        self.max_active_tokens = max_active_tokens
        self.ageing_s = ageing_s
        self._spare_slabs = ceil(watermark * cache.num_slabs)
        self._oldest_held: ScheduledRequest | None = None
        self._held_since = 0.0

    def open(self, batch: ActiveBatch, chunk_tokens: int) -> "AdmissionPass":
        """Start one scheduling pass over what is admitted already. chunk_tokens: the most one step computes of a prompt."""
        pending = [0] * len(self.cache.peak_blocks(0, 1))
        recomputing = False
        for request in batch.prefilling:
            pending = _add(pending, self.cache.pending_blocks(request, chunk_tokens))
            recomputing |= request.num_preemptions > 0
        return AdmissionPass(self, len(batch), batch.num_tokens, chunk_tokens, pending, recomputing)

    def spare_slabs(self, request: ScheduledRequest) -> int:
        """What must stay free beside the request: for one that was preempted up to half of the pool."""
        spare = self._spare_slabs
        return spare << min(request.num_preemptions, max(0, (self.cache.num_slabs // (2 * spare or 1)).bit_length() - 1))

    def hold(self, request: ScheduledRequest, now: float) -> None:
        """The queue's head does not fit. One such request at a time grows old."""
        if self._oldest_held is None:
            self._oldest_held, self._held_since = request, now

    def let_go(self, request: ScheduledRequest) -> None:
        """The request has been admitted, or has ended."""
        if self._oldest_held is request:
            self._oldest_held = None

    def overdue(self, now: float) -> ScheduledRequest | None:
        """The request that nobody may overtake any more."""
        return self._oldest_held if now - self._held_since >= self.ageing_s else None


@dataclass(slots=True)
class AdmissionPass:
    """What is left to give away in one scheduling pass.

    pending: blocks by group that are promised and not taken. recomputing: a preempted request computes its tokens again;
    nobody joins until it is done, so that every preemption is followed by at least one new token.
    """

    controller: AdmissionController
    num_active: int
    active_tokens: int
    chunk_tokens: int
    pending: list[int]
    recomputing: bool

    def admit(self, request: ScheduledRequest) -> HoldReason | None:
        """Charge the request to this pass and return None, or say what holds it. An empty batch admits any request."""
        controller = self.controller
        active_tokens = self.active_tokens + request.num_tokens
        pending = _add(self.pending, controller.cache.pending_blocks(request, self.chunk_tokens))
        if self.num_active:
            if controller.max_active_tokens is not None and active_tokens > controller.max_active_tokens:
                return HoldReason.ACTIVE_TOKENS
            if self.recomputing or not controller.cache.can_fit(pending, controller.spare_slabs(request)):
                return HoldReason.KV_BLOCKS
        self.num_active += 1
        self.active_tokens = active_tokens
        self.pending = pending
        self.recomputing |= request.num_preemptions > 0
        return None


def _add(left: list[int], right: list[int]) -> list[int]:
    return [a + b for a, b in zip(left, right, strict=True)]
