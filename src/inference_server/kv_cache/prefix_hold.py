"""`PrefixHold`: what one request has locked of the prefix tree, and the nodes that it is about to add."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from inference_server.kv_cache.prefix_node import BlockKey, PrefixNode


@dataclass(slots=True)
class PrefixHold:
    """What a request locks: `node` and all above it.

    search_end: the node at which the search for its tokens ended when it came, whether or not it can be resumed there.
    prompt_end: the last prompt end among the locked nodes, until the request's own takes its place.
    duplicates: blocks of locked nodes for which the request's tables hold other blocks with the same tokens.
    ahead: nodes of its blocks after `node`, one below the other, that are not in the tree yet.
    """

    node: PrefixNode
    search_end: PrefixNode
    prompt_end: PrefixNode | None = None
    duplicates: list[int] = field(default_factory=list)
    ahead: list[PrefixNode] = field(default_factory=list)

    @property
    def depth(self) -> int:
        """Blocks from the root to the last node ahead."""
        return self.node.depth + len(self.ahead)

    def prepare(self, keys: Sequence[BlockKey], blocks: Sequence[int]) -> None:
        """Make the nodes that come next, by their keys and their blocks in the full group."""
        above = self.ahead[-1] if self.ahead else None
        for depth, (key, block) in enumerate(zip(keys, blocks, strict=True), self.depth + 1):
            node = PrefixNode(above, key, depth, block)
            if above is not None:
                above.children[key] = node
            self.ahead.append(node)
            above = node

    def hang(self, parting: PrefixNode, depth: int) -> list[PrefixNode]:
        """Hang the nodes ahead, down to `depth`, below `parting`, which has no child like them. Returns them; they stay in `ahead`."""
        first, stop = parting.depth - self.node.depth, depth - self.node.depth
        nodes = self.ahead[first:stop]
        nodes[0].parent = parting
        parting.children[nodes[0].key] = nodes[0]
        if stop < len(self.ahead):  # the rest is of a step that has not been collected
            nodes[-1].children.clear()
            self.ahead[stop].parent = None
        return nodes
