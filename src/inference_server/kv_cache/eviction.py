"""Which cached prefix goes first when memory runs out: the policies, and the queue that applies one.

Only unlocked leaves are ever offered, so children go before their parents. The policies rank; they hold no state.
"""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Protocol

from inference_server.kv_cache.prefix_node import PrefixNode

Rank = tuple[int, ...]


class EvictionPolicy(Protocol):
    def rank(self, node: PrefixNode) -> Rank:
        """Leaves go in ascending order of this. It may change only while the node is locked or has children."""
        ...


class LRU:
    """The leaf that was used last the longest time ago goes first."""

    def rank(self, node: PrefixNode) -> Rank:
        return (node.last_used,)


class SinkLRU:
    """LRU, but the first `num_sink_blocks` of every path from the root go only when no other unlocked leaf exists.

    The beginnings of prompts, which many sequences share and attend to most, so outlive any burst of long single prompts.
    """

    def __init__(self, num_sink_blocks: int = 4) -> None:
        self._num_sink_blocks = num_sink_blocks

    def rank(self, node: PrefixNode) -> Rank:
        return int(node.depth <= self._num_sink_blocks), node.last_used


class EvictionQueue:
    """The unlocked leaves in the order of a policy. An entry whose node has changed since is skipped when its turn comes."""

    def __init__(self, policy: EvictionPolicy, is_evictable: Callable[[PrefixNode], bool]) -> None:
        self._policy = policy
        self._is_evictable = is_evictable
        self._heap: list[tuple[Rank, int, PrefixNode]] = []
        self._order = count()
        self._compact_at = 1024

    def push(self, node: PrefixNode) -> None:
        """Offer a node that has just become an unlocked leaf."""
        heapq.heappush(self._heap, (self._policy.rank(node), next(self._order), node))
        if len(self._heap) >= self._compact_at:
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapq.heapify(self._heap)
            self._compact_at = 2 * len(self._heap) + 1024

    def first(self) -> PrefixNode | None:
        """The leaf to evict next, in the queue until it is gone or locked; None when all are locked."""
        while self._heap:
            if self._is_valid(self._heap[0]):
                return self._heap[0][2]
            heapq.heappop(self._heap)
        return None

    def nodes(self) -> set[PrefixNode]:
        """All that would be first one day."""
        return {entry[2] for entry in self._heap if self._is_valid(entry)}

    def _is_valid(self, entry: tuple[Rank, int, PrefixNode]) -> bool:
        return self._is_evictable(entry[2]) and self._policy.rank(entry[2]) == entry[0]
