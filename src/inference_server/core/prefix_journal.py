"""`PrefixJournal`: the latest changes of what a prefix cache holds, for a router elsewhere to follow.

Bounded: who reads too rarely misses changes, and can tell how many. Prefixes go by their names (`ChunkHasher`).
"""

from collections import deque

from inference_server.core.chunk_hash import ChunkHasher


class PrefixJournal:
    """Written by the engine thread alone, read by any."""

    def __init__(self, hasher: ChunkHasher, window: int = 1024) -> None:
        """window: how many changes are kept."""
        self.hasher = hasher
        self._changes: deque[tuple[int, int]] = deque(maxlen=window)
        self._total = 0

    def added(self, name: int) -> None:
        """Sequences can start from it from now on."""
        self._append(name)

    def removed(self, name: int) -> None:
        """It cannot any more."""
        self._append(-name)

    def latest(self) -> tuple[int, list[int]]:
        """How many changes there have been in all, and the last of them, oldest first: a name that came, or minus one that went."""
        changes = self._changes.copy()  # one operation of the interpreter: no change comes between
        return (changes[-1][0] if changes else 0), [change for _, change in changes]

    def _append(self, change: int) -> None:
        self._total += 1
        self._changes.append((self._total, change))
