"""`PrefixCache`: a radix tree over token ids, one block a node, of the KV that later requests can start from.

Prompts and generated text alike are cached, a block as soon as it is full and its step collected. A request locks the nodes
of its sequence by references to their blocks. With sliding windows a prefix can only be resumed at a node whose last window
is all there; window blocks that no likely point of resumption needs are the first to go, then leaves by the policy. Edits no
block table and takes no free block: `CacheManager` does, and asks for evictions when the pool is short.
The idea of the tree is RadixAttention's (Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", 2024).
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from inference_server.core.kv_layout import LayerGroup
from inference_server.core.request import ScheduledRequest
from inference_server.kv_cache.block_pool import BlockPool
from inference_server.kv_cache.eviction import EvictionPolicy, EvictionQueue
from inference_server.kv_cache.exact_match import ExactMatchIndex
from inference_server.kv_cache.prefix_node import BlockKey, PrefixNode

FULL, WINDOW = 0, 1


@dataclass(slots=True)
class _Hold:
    """What a request locks: `node` and all above it. duplicates: blocks of nodes it locks while its tables hold copies of its own."""

    node: PrefixNode
    duplicates: list[int] = field(default_factory=list)


class PrefixCache:
    """evicted_bytes: of all blocks given up so far."""

    def __init__(self, pool: BlockPool, policy: EvictionPolicy) -> None:
        """Raises ValueError for layer groups that `supports` turns down."""
        if not self.supports(pool.layout.groups):
            raise ValueError("a prefix cache needs a group of full-attention layers, and after it at most one with a window")
        self.evicted_bytes = 0
        self._pool = pool
        self._block_size = pool.layout.block_size
        self._has_window = len(pool.layout.groups) == 2
        # The first token after a boundary reads its window less itself.
        self._window_blocks = max(-(-((group.window or 1) - 1) // self._block_size) for group in pool.layout.groups)
        self._root = PrefixNode()
        self._exact = ExactMatchIndex()
        self._holds: dict[str, _Hold] = {}
        self._queue = EvictionQueue(policy, self._is_evictable)
        # Nodes whose window block no request uses, oldest first: those that no boundary needs, and the others.
        self._spare: OrderedDict[PrefixNode, None] = OrderedDict()
        self._needed: OrderedDict[PrefixNode, None] = OrderedDict()
        self._node_by_window_block: dict[int, PrefixNode] = {}
        self._time = 0

    @staticmethod
    def supports(groups: Sequence[LayerGroup]) -> bool:
        """Whether the groups are a full one, or a full and a window one in this order."""
        return [group.window is None for group in groups] in ([True], [True, False])

    def acquire(self, request: ScheduledRequest) -> list[list[int]]:
        """Lock the longest prefix that the request can start from, one token short of all it has at most.

        Returns its blocks by layer group, one reference taken of each, null where the window has passed.
        """
        nodes = self._reusable(self._find(request))
        self._time += 1
        for node in nodes:
            node.last_used = self._time
        self._holds[request.request_id] = _Hold(nodes[-1] if nodes else self._root)
        tables = [[node.block for node in nodes]]
        self._pool.share(FULL, tables[FULL])
        if self._has_window:
            num_passed = max(0, len(nodes) - self._window_blocks)
            in_window = nodes[num_passed:]
            self._pool.share(WINDOW, [node.window_block for node in in_window])
            for node in in_window:
                self._settle(node)
            tables.append([0] * num_passed + [node.window_block for node in in_window])
        return tables

    def commit(self, request: ScheduledRequest) -> None:
        """Cache the full blocks of what the request has collected."""
        hold = self._holds.get(request.request_id)
        size, num_blocks = self._block_size, request.num_collected_tokens // self._block_size
        if hold is None or num_blocks <= hold.node.depth:
            return
        node = hold.node
        self._time += 1
        full = request.block_tables[FULL].block_ids
        window = request.block_tables[WINDOW].block_ids if self._has_window else [0] * num_blocks
        grown: PrefixNode | None = None
        for index in range(node.depth, num_blocks):
            ids = request.token_ids[index * size : (index + 1) * size]
            key: BlockKey = tuple(ids) if index else (request.cache_salt, *ids)
            child = node.children.get(key)
            if child is None:
                grown = grown or node
                child = node.children[key] = PrefixNode(node, key, index + 1, full[index])
                self._pool.keep(FULL, full[index])
            else:
                self._join(hold, child, full[index])
            if window[index] and not child.window_block:
                self._keep_window(child, window[index])
            child.last_used = self._time
            node = child
        hold.node = node
        if grown is not None:
            # In this order, what both need stays needed throughout.
            self._update_boundary(node)
            self._update_boundary(grown)

    def let_go(self, request: ScheduledRequest) -> None:
        """Unlock the request's nodes, its tables being released already. Idempotent."""
        hold = self._holds.pop(request.request_id, None)
        if hold is None:
            return
        self._pool.release(FULL, hold.duplicates)
        self._time += 1
        hold.node.last_used = self._time
        self._offer(hold.node)

    def window_released(self, blocks: Iterable[int]) -> None:
        """A request let go of these window blocks."""
        for block in blocks:
            node = self._node_by_window_block.get(block)
            if node is not None:
                self._settle(node)

    def evict(self) -> bool:
        """Give up one block, or one leaf, that no request uses. False if there is none.

        The order: window blocks that no boundary needs, leaves by the policy, window blocks that locked nodes can do without.
        """
        if self._spare:
            self._drop_window(next(iter(self._spare)))
        elif (leaf := self._queue.pop()) is not None:
            self._remove(leaf)
        elif self._needed:
            self._drop_window(next(iter(self._needed)))
        else:
            return False
        return True

    def _find(self, request: ScheduledRequest) -> list[PrefixNode]:
        """The nodes of the longest cached prefix, whatever has become of their window blocks."""
        size, salt, token_ids = self._block_size, request.cache_salt, request.token_ids
        num_blocks = (len(token_ids) - 1) // size
        key = self._exact.key(salt, token_ids[: num_blocks * size])
        known = self._exact.get(key)
        if known is not None:
            return known.path()
        nodes: list[PrefixNode] = []
        node = self._root
        for index in range(num_blocks):
            ids = token_ids[index * size : (index + 1) * size]
            block_key: BlockKey = tuple(ids) if index else (salt, *ids)
            child = node.children.get(block_key)
            if child is None:
                return nodes
            nodes.append(child)
            node = child
        if nodes:
            self._exact.put(key, node)
        return nodes

    def _reusable(self, nodes: list[PrefixNode]) -> list[PrefixNode]:
        """The longest part from the root on whose last window is there."""
        if not self._has_window:
            return nodes
        end, num_present = len(nodes), 0
        for index in range(len(nodes) - 1, -1, -1):
            if num_present == self._window_blocks:
                break
            if nodes[index].window_block:
                num_present += 1
            else:
                end, num_present = index, 0
        return nodes[:end]

    def _join(self, hold: _Hold, node: PrefixNode, block: int) -> None:
        """The request has computed what another did before: keep one of the two, and lock that."""
        if self._pool.ref_count(FULL, node.block):
            self._pool.share(FULL, [node.block])
            hold.duplicates.append(node.block)
        else:
            self._pool.drop(FULL, node.block)
            self._pool.keep(FULL, block)
            node.block = block

    def _keep_window(self, node: PrefixNode, block: int) -> None:
        self._pool.keep(WINDOW, block)
        node.window_block = block
        self._node_by_window_block[block] = node

    def _drop_window(self, node: PrefixNode) -> None:
        self._spare.pop(node, None)
        self._needed.pop(node, None)
        del self._node_by_window_block[node.window_block]
        self._pool.drop(WINDOW, node.window_block)
        self.evicted_bytes += self._pool.layout.block_bytes(WINDOW)
        node.window_block = 0

    def _remove(self, leaf: PrefixNode) -> None:
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.key]
        self._update_boundary(parent)
        self._set_boundary(leaf, False)
        if leaf.window_block:
            self._drop_window(leaf)
        self._pool.drop(FULL, leaf.block)
        self.evicted_bytes += self._pool.layout.block_bytes(FULL)
        self._exact.forget(leaf)
        leaf.parent = None
        self._offer(parent)

    def _update_boundary(self, node: PrefixNode) -> None:
        self._set_boundary(node, node is not self._root and len(node.children) != 1)

    def _set_boundary(self, node: PrefixNode, is_boundary: bool) -> None:
        if node.is_boundary is is_boundary:
            return
        node.is_boundary = is_boundary
        change = 1 if is_boundary else -1
        current: PrefixNode | None = node
        for _ in range(self._window_blocks):
            if current is None or current is self._root:
                break
            current.num_needing += change
            if current.num_needing == (1 if is_boundary else 0):
                self._settle(current)
            current = current.parent

    def _settle(self, node: PrefixNode) -> None:
        """Put a node's window block where it belongs: in use, needed or spare."""
        is_unused = node.window_block and not self._pool.ref_count(WINDOW, node.window_block)
        if not is_unused or node.num_needing:
            self._spare.pop(node, None)
        if not is_unused or not node.num_needing:
            self._needed.pop(node, None)
        if is_unused:
            (self._needed if node.num_needing else self._spare).setdefault(node)

    def _offer(self, node: PrefixNode) -> None:
        if self._is_evictable(node):
            self._queue.push(node)

    def _is_evictable(self, node: PrefixNode) -> bool:
        return node.parent is not None and not node.children and not self._pool.ref_count(FULL, node.block)

    def _nodes(self) -> Iterator[PrefixNode]:
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            stack += node.children.values()
            yield node

    def duplicates(self, request: ScheduledRequest) -> list[int]:
        """Blocks of the full group that the request references beside those in its tables."""
        hold = self._holds.get(request.request_id)
        return hold.duplicates if hold else []

    def check_integrity(self) -> None:
        """Raises AssertionError with what is off; costs time linear in the tree and the window."""
        pool, nodes = self._pool, list(self._nodes())
        assert all(node.parent is not None and node.parent.children[node.key] is node for node in nodes), "a parent is off"
        assert all(node.depth == node.parent.depth + 1 for node in nodes if node.parent), "a depth is off"
        for group, kept in enumerate(([n.block for n in nodes], [n.window_block for n in nodes if n.window_block])):
            assert len(set(kept)) == len(kept), "two nodes keep one block"
            if group < len(pool.layout.groups):
                assert set(kept) == {b for b in range(pool.layout.num_blocks(group)) if pool.is_kept(group, b)}, "a kept block is lost"
        assert self._node_by_window_block == {n.window_block: n for n in nodes if n.window_block}, "the window blocks are off"
        for node in nodes:
            assert node.is_boundary == (len(node.children) != 1), "a boundary is off"
            locked_above = node.parent is self._root or pool.ref_count(FULL, node.parent.block if node.parent else 0)
            assert locked_above or not pool.ref_count(FULL, node.block), "a locked node below an unlocked one"
        needing = {node: 0 for node in nodes}
        for boundary in nodes:
            for node in boundary.path()[::-1][: self._window_blocks] if boundary.is_boundary else ():
                needing[node] += 1
        assert all(node.num_needing == count for node, count in needing.items()), "a window's need is off"
        unused = {n for n in nodes if n.window_block and not pool.ref_count(WINDOW, n.window_block)}
        assert set(self._spare) == {n for n in unused if not n.num_needing}, "the spare window blocks are off"
        assert set(self._needed) == {n for n in unused if n.num_needing}, "the needed window blocks are off"
        assert self._queue.nodes() == {node for node in nodes if self._is_evictable(node)}, "an unlocked leaf is not on offer"
