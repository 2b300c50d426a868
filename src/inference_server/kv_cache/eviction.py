"""Which cached prefix goes first when memory runs out: the policies, and the queue that applies one.

Only unlocked leaves are ever offered, so children go before their parents.
"""

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol

from inference_server.kv_cache.prefix_node import PrefixNode

Rank = tuple[float, ...]
_Entry = tuple[Rank, int, PrefixNode]


class EvictionPolicy(Protocol):
    """The order in which leaves go."""

    def rank(self, node: PrefixNode) -> Rank:
        """Leaves go in ascending order of this. It is asked when a leaf is offered, and again after each `observe`."""
        ...

    def observe(self, block_mass: Sequence[float], now: int) -> None:
        """block_mass: see `StepResult`. now: the time that `last_used` of nodes is compared with."""
        ...


class LRU:
    """The least recently used leaf goes first."""

    def rank(self, node: PrefixNode) -> Rank:
        return (node.last_used,)

    def observe(self, block_mass: Sequence[float], now: int) -> None:
        """Attention does not count here."""


class SinkLRU(LRU):
    """LRU, but the first `num_sink_blocks` of every path from the root go only when no other unlocked leaf exists.

    So the beginnings of prompts, which many sequences share and attend to most, outlive any burst of long single prompts.
    """

    def __init__(self, num_sink_blocks: int = 4) -> None:
        self._num_sink_blocks = num_sink_blocks

    def rank(self, node: PrefixNode) -> Rank:
        return int(node.depth <= self._num_sink_blocks), node.last_used


class H2O:
    """The branch that was attended to least goes first: a leaf, and above it the nodes that have no other child.

    After Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models" (2023), which keeps
    the recent tokens of a running sequence and those with the most accumulated attention, and computes without the others. Here
    whole cached blocks of sequences that do not run are evicted, so no output changes. Mass fades, so that former heavy hitters make
    room. A leaf that was used since mass was last measured counts as recent: those go last, in the order of LRU.
    """

    def __init__(self) -> None:
        self._block_mass: Sequence[float] = ()
        self._measured_at = 0

    def observe(self, block_mass: Sequence[float], now: int) -> None:
        self._block_mass, self._measured_at = block_mass, now

    def rank(self, node: PrefixNode) -> Rank:
        if node.last_used > self._measured_at:
            return 1, 0.0, node.last_used
        mass, last_used = 0.0, node.last_used
        while node.parent is not None:
            mass += self._block_mass[node.block]
            node = node.parent
            if len(node.children) != 1:
                break
        return 0, mass, last_used


class EvictionQueue:
    """The unlocked leaves in the order of a policy. An entry whose node is locked, gone or offered anew is skipped when its turn comes."""

    def __init__(self, policy: EvictionPolicy, is_evictable: Callable[[PrefixNode], bool]) -> None:
        self._policy = policy
        self._is_evictable = is_evictable
        self._heap: list[_Entry] = []
        self._latest: dict[PrefixNode, int] = {}  # the number of each node's valid entry
        self._numbers = count()
        self._compact_at = 1024
        self._is_stale = False

    def push(self, node: PrefixNode) -> None:
        """Offer a node that has just become an unlocked leaf."""
        self._latest[node] = number = next(self._numbers)
        heapq.heappush(self._heap, (self._policy.rank(node), number, node))
        if len(self._heap) >= self._compact_at:
            self._rebuild()
            self._compact_at = 2 * len(self._heap) + 1024

    def rerank(self) -> None:
        """Ask the policy anew about every leaf before the next is evicted."""
        self._is_stale = True

    def first(self) -> PrefixNode | None:
        """The leaf to evict next, in the queue until it is gone or locked; None when all are locked."""
        if self._is_stale:
            self._rebuild()
        while self._heap:
            if self._is_valid(self._heap[0]):
                return self._heap[0][2]
            _, number, node = heapq.heappop(self._heap)
            if self._latest.get(node) == number:
                del self._latest[node]
        return None

    def nodes(self) -> set[PrefixNode]:
        """All nodes that `first` would return sooner or later."""
        return {entry[2] for entry in self._heap if self._is_valid(entry)}

    def _rebuild(self) -> None:
        self._is_stale = False
        entries = [entry for entry in self._heap if self._is_valid(entry)]
        self._latest = {node: number for _, number, node in entries}
        self._heap = [(self._policy.rank(node), number, node) for _, number, node in entries]
        heapq.heapify(self._heap)

    def _is_valid(self, entry: _Entry) -> bool:
        _, number, node = entry
        return self._latest.get(node) == number and self._is_evictable(node)
