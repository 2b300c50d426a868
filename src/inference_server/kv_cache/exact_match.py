"""`ExactMatchIndex`: from a whole prompt to its node in one look-up, in front of the prefix tree.

It pays where the same long prompt comes again and again: one digest instead of a walk. The digest is cryptographic, since a
collision would hand one prompt the KV of another.
"""

from collections.abc import Sequence
from hashlib import blake2b

from inference_server.kv_cache.prefix_node import BlockKey, PrefixNode


class ExactMatchIndex:
    """At most one entry a node, gone when the node goes."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, PrefixNode] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def key(self, block_keys: Sequence[BlockKey]) -> bytes:
        """A digest of a sequence of blocks. Their number goes in too: it tells where the cache salt in the first one ends."""
        return blake2b(len(block_keys).to_bytes(8, "little") + b"".join(block_keys), digest_size=16).digest()

    def get(self, key: bytes) -> PrefixNode | None:
        return self._nodes.get(key)

    def put(self, key: bytes, node: PrefixNode) -> None:
        node.exact_key = key
        self._nodes[key] = node

    def forget(self, node: PrefixNode) -> None:
        if node.exact_key is not None:
            del self._nodes[node.exact_key]
            node.exact_key = None
