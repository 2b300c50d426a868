"""`RankedQueue`: items in ascending order of a rank that the caller chooses and remembers. Knows nothing of requests.

A search costs O(log n) comparisons of tuples; the shift behind it is one memmove of pointers, microseconds at 10,000 items.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
Rank = tuple[float, ...]


class RankedQueue(Generic[T]):
    """No two items may have the same rank."""

    def __init__(self) -> None:
        self._ranks: list[Rank] = []
        self._items: list[T] = []

    def add(self, rank: Rank, item: T) -> None:
        index = bisect_left(self._ranks, rank)
        self._ranks.insert(index, rank)
        self._items.insert(index, item)

    def remove(self, rank: Rank) -> None:
        """Take out the item of that rank, which must be there."""
        index = bisect_left(self._ranks, rank)
        del self._ranks[index], self._items[index]

    @property
    def first(self) -> T:
        """Raises IndexError when empty."""
        return self._items[0]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)
