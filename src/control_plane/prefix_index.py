"""`PrefixIndex`: which replica has which prefixes cached, as far as it was told.

Approximate by design: reports come late and are bounded, and the names added longest ago are forgotten when there are too many. A wrong
answer costs a cache miss and nothing else. Knows prefixes by their names (`ChunkHasher`), never by their text.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from sys import getsizeof

_LIST_NODE_BYTES = 56  # what an OrderedDict adds to an entry; `getsizeof` does not tell
_SPARE_SLOTS = 64


class PrefixIndex:
    """From the name of a prefix to the set of replicas that have it: the bits of an integer, one a replica."""

    def __init__(self, capacity: int) -> None:
        """capacity: names, over all replicas together."""
        self._capacity = capacity
        self._holders: OrderedDict[int, int] = OrderedDict()  # the name that was added longest ago in front
        self._slots: dict[str, int] = {}
        self._replicas: list[str] = []  # by slot, those that are gone too
        self._living = 0

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, replica: str, names: Iterable[int]) -> None:
        """The replica has these prefixes, or is about to."""
        bit, holders = 1 << self._slot(replica), self._holders
        for name in names:
            holders[name] = holders.get(name, 0) | bit
            holders.move_to_end(name)
        while len(holders) > self._capacity:
            holders.popitem(last=False)

    def remove(self, replica: str, names: Iterable[int]) -> None:
        """The replica has given these prefixes up. Nothing happens for those that it was not known to have."""
        if replica not in self._slots:
            return
        mask = ~(1 << self._slots[replica])
        for name in names:
            self._keep(name, self._holders.get(name, 0) & mask)

    def forget(self, replica: str) -> None:
        """The replica is gone, with all it had. Its bits stay where they are, and mean nothing any more."""
        slot = self._slots.pop(replica, None)
        if slot is not None:
            self._living &= ~(1 << slot)

    def depths(self, names: Sequence[int]) -> dict[str, int]:
        """How many of a prompt's names, from the first on without a gap, each replica has. Replicas with none are left out."""
        found: dict[str, int] = {}
        holders = self._living & self._holders.get(names[0], 0) if names else 0
        for depth in range(1, len(names)):
            if not holders:
                return found
            still = holders & self._holders.get(names[depth], 0)
            if still != holders:
                found.update((replica, depth) for replica in self._members(holders & ~still))
                holders = still
        found.update((replica, len(names)) for replica in self._members(holders))
        return found

    def num_bytes(self) -> int:
        """About what the index occupies. Costs a walk through it."""
        entries = sum(getsizeof(name) + getsizeof(holders) + _LIST_NODE_BYTES for name, holders in self._holders.items())
        return getsizeof(self._holders) + entries

    def _slot(self, replica: str) -> int:
        slot = self._slots.get(replica)
        if slot is None:
            if len(self._replicas) > 2 * len(self._slots) + _SPARE_SLOTS:
                self._renumber()
            slot = self._slots[replica] = len(self._replicas)
            self._replicas.append(replica)
            self._living |= 1 << slot
        return slot

    def _renumber(self) -> None:
        """Give the living the lowest bits, and drop those of the others. Costs a walk through the index, once in many deaths."""
        moved = {replica: slot for slot, replica in enumerate(self._slots)}
        for name in list(self._holders):
            self._keep(name, sum(1 << moved[replica] for replica in self._members(self._holders[name] & self._living)))
        self._slots, self._replicas, self._living = moved, list(moved), (1 << len(moved)) - 1

    def _keep(self, name: int, holders: int) -> None:
        if holders:
            self._holders[name] = holders
        else:
            self._holders.pop(name, None)

    def _members(self, holders: int) -> Iterator[str]:
        while holders:
            bit = holders & -holders
            yield self._replicas[bit.bit_length() - 1]
            holders ^= bit
