"""`WindowBlocks`: which nodes of the prefix tree still have a block of the window layers, and how much each of those is worth.

A sequence can be resumed behind a node only if the window before it is whole. The likely places are boundaries, where a
sequence ends or several part, and the ends of prompts. So a window block that no request uses is *needed* if a boundary reads
it, else *wanted* if a prompt end does, else *spare*. Decides no eviction: it keeps the three in order for the `PrefixCache`.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from inference_server.kv_cache.block_pool import BlockPool
from inference_server.kv_cache.prefix_node import PrefixNode

WINDOW = 1


class WindowBlocks:
    """exist: whether the model has window layers. needed, wanted, spare: ordered sets of nodes, in the order in which they came."""

    def __init__(self, pool: BlockPool) -> None:
        layout = pool.layout
        self.exist = len(layout.groups) > WINDOW
        self.needed: OrderedDict[PrefixNode, None] = OrderedDict()
        self.wanted: OrderedDict[PrefixNode, None] = OrderedDict()
        self.spare: OrderedDict[PrefixNode, None] = OrderedDict()
        self._pool = pool
        # The first token behind a node reads itself and the window - 1 tokens before it.
        window = (layout.groups[WINDOW].window or 1) if self.exist else 1
        self._num_blocks = -(-(window - 1) // layout.block_size)
        self._node_by_block: dict[int, PrefixNode] = {}

    def resumable(self, nodes: list[PrefixNode]) -> list[PrefixNode]:
        """The longest beginning of `nodes`, a path from the root, whose last window is whole."""
        if not self.exist:
            return nodes
        end, num_present = len(nodes), 0
        for index in range(len(nodes) - 1, -1, -1):
            if num_present == self._num_blocks:
                break
            if nodes[index].window_block:
                num_present += 1
            else:
                end, num_present = index, 0
        return nodes[:end]

    def share(self, nodes: list[PrefixNode]) -> list[int]:
        """The block table of a request that starts behind this path: blocks with a reference taken, null where the window has passed."""
        num_passed = max(0, len(nodes) - self._num_blocks)
        in_window = nodes[num_passed:]
        blocks = [node.window_block for node in in_window]
        self._pool.share(WINDOW, blocks)
        for node in in_window:
            self._settle(node)
        return [0] * num_passed + blocks

    def keep(self, nodes: Sequence[PrefixNode], blocks: Sequence[int]) -> None:
        """Give each node a block that a request uses."""
        self._pool.keep(WINDOW, blocks)
        for node, block in zip(nodes, blocks, strict=True):
            node.window_block = block
            self._node_by_block[block] = node

    def drop(self, node: PrefixNode) -> None:
        """Take a node's block away."""
        self._pool.drop(WINDOW, node.window_block)
        del self._node_by_block[node.window_block]
        node.window_block = 0
        self._settle(node)

    def released(self, blocks: Iterable[int]) -> None:
        """A request let go of these blocks."""
        for block in blocks:
            node = self._node_by_block.get(block)
            if node is not None:
                self._settle(node)

    def set_boundary(self, node: PrefixNode, is_boundary: bool) -> None:
        """Note whether `node` is a boundary, on it and on the nodes whose window blocks it needs as one."""
        if node.is_boundary is is_boundary:
            return
        node.is_boundary = is_boundary
        change = 1 if is_boundary else -1
        for reached in self._before(node):
            reached.num_needing += change
            if reached.num_needing == is_boundary:
                self._settle(reached)

    def move_boundary(self, node: PrefixNode) -> None:
        """Make a new node the boundary that its parent was: its window has one node more, itself, and lacks its parent's farthest."""
        parent = node.parent
        assert parent is not None, "the root is no boundary"
        parent.is_boundary, node.is_boundary = False, True
        if not self._num_blocks:
            return
        node.num_needing += 1  # its block is in use, so it is in none of the sets
        if parent.depth >= self._num_blocks:
            *_, farthest = self._before(parent)
            farthest.num_needing -= 1
            if not farthest.num_needing:
                self._settle(farthest)

    def set_prompt_end(self, node: PrefixNode, is_prompt_end: bool) -> None:
        """As `set_boundary` for a prompt end, which wants window blocks but does not need them."""
        if node.is_prompt_end is is_prompt_end:
            return
        node.is_prompt_end = is_prompt_end
        change = 1 if is_prompt_end else -1
        for reached in self._before(node):
            reached.num_wanting += change
            if reached.num_wanting == is_prompt_end:
                self._settle(reached)

    def _before(self, node: PrefixNode) -> Iterator[PrefixNode]:
        """The nodes whose window blocks the first token behind `node` reads."""
        for _ in range(self._num_blocks):
            if node.parent is None:
                return
            yield node
            node = node.parent

    def _settle(self, node: PrefixNode) -> None:
        """Move a node to the set in which its window block belongs: needed, wanted, spare, or none while the block is in use or gone."""
        block, home = node.window_block, None
        if block and not self._pool.ref_count(WINDOW, block):
            home = self.needed if node.num_needing else self.wanted if node.num_wanting else self.spare
        if home is node.home:
            return
        if node.home is not None:
            del node.home[node]
        if home is not None:
            home[node] = None
        node.home = home

    def check_integrity(self, nodes: list[PrefixNode]) -> None:
        """nodes: all of the tree. Raises AssertionError with what is off."""
        kept = {node.window_block: node for node in nodes if node.window_block}
        assert self._node_by_block == kept, "the nodes' window blocks are off"
        if self.exist:
            blocks = range(self._pool.layout.num_blocks(WINDOW))
            assert set(kept) == {b for b in blocks if self._pool.is_kept(WINDOW, b)}, "a kept window block is lost"
        needing = Counter(n for end in nodes if end.is_boundary for n in self._before(end))
        wanting = Counter(n for end in nodes if end.is_prompt_end for n in self._before(end))
        assert all((n.num_needing, n.num_wanting) == (needing[n], wanting[n]) for n in nodes), "a window's need is off"
        unused = {n for block, n in kept.items() if not self._pool.ref_count(WINDOW, block)}
        needed, wanted = {n for n in unused if n.num_needing}, {n for n in unused if n.num_wanting}
        homes = set(self.needed), set(self.wanted), set(self.spare)
        assert homes == (needed, wanted - needed, unused - wanted - needed), "an unused window block is in the wrong place"
