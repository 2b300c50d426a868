"""`ReplicaReport`: what a replica tells a router about itself, again and again."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """tokens: in flight, those that wait included. waiting_tokens, waiting: tokens and requests in the queue. queue_s: seconds until all
    that is in the queue now is admitted, at the recent rate. kv_pressure: the share of the KV pool that running requests hold.

    changes: the latest changes of what is cached, oldest first, each the name of a prefix: positive if it was added, negative if it was
    removed. end: how many changes there have been in all, so that a router knows which are new to it, and whether it missed any.
    """

    tokens: int = 0
    waiting_tokens: int = 0
    waiting: int = 0
    queue_s: float = 0.0
    kv_pressure: float = 0.0
    hit_tokens: int = 0
    miss_tokens: int = 0
    end: int = 0
    changes: Sequence[int] = ()

    def news(self, position: int) -> Iterator[int]:
        """The changes after the first `position` of all, as far as the report has them."""
        yield from self.changes[max(0, len(self.changes) - (self.end - position)) :]

    def as_stats(self) -> dict[str, Any]:
        """A mapping of plain values, which processes without this package can pass on."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"changes": array("q", self.changes).tobytes()}

    @classmethod
    def from_stats(cls, stats: Mapping[str, Any]) -> Self:
        changes = array("q")
        changes.frombytes(stats["changes"])
        return cls(**{**stats, "changes": changes})
