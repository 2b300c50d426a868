"""`ChunkHasher`: names for prefixes that say nothing about their text, so that caches on different machines can be compared.

A prefix is cut into chunks of `chunk_tokens` tokens; the name of a chunk covers all tokens up to its end. Names are keyed by a secret
salt that a fleet shares: who sees them can neither tell a text nor test a guess. They are numbers from 1 to 2**63 - 1, so two prefixes may
share one, if rarely; nothing may depend on them but a guess at what is cached where.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

_BYTES = 8


class ChunkHasher:
    """Immutable, and safe to share between threads."""

    def __init__(self, salt: bytes, chunk_tokens: int) -> None:
        """salt: at most 64 bytes."""
        self.chunk_tokens = chunk_tokens
        self._salt = salt

    def root(self, cache_salt: str = "") -> int:
        """The name of no tokens. Requests with different cache salts share nothing."""
        return self._name(cache_salt.encode())

    def extend(self, parent: int, token_ids: Sequence[int]) -> int:
        """The name of the prefix `parent` with one more chunk."""
        return self._name(array("Q", (parent, *token_ids)).tobytes())

    def chain(self, token_ids: Sequence[int], cache_salt: str = "") -> list[int]:
        """The names of all whole chunks of a prompt, shortest prefix first."""
        size, names, name = self.chunk_tokens, [], self.root(cache_salt)
        for end in range(size, len(token_ids) + 1, size):
            name = self.extend(name, token_ids[end - size : end])
            names.append(name)
        return names

    def _name(self, data: bytes) -> int:
        return (int.from_bytes(blake2b(data, digest_size=_BYTES, key=self._salt).digest(), "little") >> 1) or 1
