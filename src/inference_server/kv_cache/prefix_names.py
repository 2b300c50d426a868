"""`PrefixNames`: tells a `PrefixJournal` which whole chunks of text come into the prefix tree and which leave it.

A collaborator of `PrefixCache`, made only where a router follows this cache; all its memory is here.
"""

from inference_server.core.prefix_journal import PrefixJournal
from inference_server.kv_cache.prefix_node import PrefixNode, key_parts


class PrefixNames:
    """Remembers the name of every node at which a chunk ends: names of the next chunks are made from it."""

    def __init__(self, journal: PrefixJournal, block_size: int) -> None:
        """Raises ValueError unless a chunk is a whole number of blocks."""
        self._blocks_per_chunk, rest = divmod(journal.hasher.chunk_tokens, block_size)
        if rest or not self._blocks_per_chunk:
            raise ValueError(f"a chunk of {journal.hasher.chunk_tokens} tokens is no whole number of blocks of {block_size}")
        self._block_size = block_size
        self._journal = journal
        self._names: dict[PrefixNode, int] = {}

    def added(self, node: PrefixNode) -> None:
        """The node is new in the tree."""
        if node.depth % self._blocks_per_chunk:
            return
        token_ids: list[int] = []
        above = node
        for _ in range(self._blocks_per_chunk):
            token_ids[:0], salt = key_parts(above.key, self._block_size)
            assert above.parent is not None, "the root is no block"
            above = above.parent
        parent = self._journal.hasher.root(salt) if above.parent is None else self._names[above]
        name = self._names[node] = self._journal.hasher.extend(parent, token_ids)
        self._journal.added(name)

    def removed(self, node: PrefixNode) -> None:
        """The node has left the tree."""
        name = self._names.pop(node, None)
        if name is not None:
            self._journal.removed(name)
