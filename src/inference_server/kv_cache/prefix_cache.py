"""`PrefixCache`: a radix tree over token ids, one block a node, of the KV that later requests can start from.

Both prompts and generated text are cached, each block as soon as it is full and its step collected. A request locks the nodes
of its sequence by references to their blocks. With sliding windows, a prefix can only be resumed at a node whose last window
is all there; window blocks that no likely point of resumption needs are the first to go, then leaves by the policy. Edits no
block table and takes no free block: `CacheManager` does both, and asks for evictions when the pool is short.
The idea of the tree is RadixAttention's (Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", 2024).
"""

from collections.abc import Iterable, Iterator, Sequence

from inference_server.core.kv_layout import LayerGroup
from inference_server.core.request import ScheduledRequest
from inference_server.kv_cache.block_pool import BlockPool
from inference_server.kv_cache.eviction import EvictionPolicy, EvictionQueue
from inference_server.kv_cache.exact_match import ExactMatchIndex
from inference_server.kv_cache.prefix_hold import PrefixHold
from inference_server.kv_cache.prefix_names import PrefixNames
from inference_server.kv_cache.prefix_node import BlockKey, PrefixNode, block_keys
from inference_server.kv_cache.window_blocks import WINDOW, WindowBlocks

FULL = 0


class PrefixCache:
    """evicted_bytes: bytes of all blocks given up so far."""

    def __init__(self, pool: BlockPool, policy: EvictionPolicy, names: PrefixNames | None = None) -> None:
        """names: is told which nodes come and go, if given. Raises ValueError for layer groups that `supports` turns down."""
        if not self.supports(pool.layout.groups):
            raise ValueError("a prefix cache needs a group of full-attention layers, and after it at most one with a window")
        self.evicted_bytes = 0
        self._pool = pool
        self._block_size = pool.layout.block_size
        self._windows = WindowBlocks(pool)
        self._root = PrefixNode()
        self._exact = ExactMatchIndex()
        self._holds: dict[str, PrefixHold] = {}
        self._policy = policy
        self._names = names
        self._queue = EvictionQueue(policy, self._is_evictable)
        self._time = 0

    @staticmethod
    def supports(groups: Sequence[LayerGroup]) -> bool:
        """Whether the groups are a full one, or a full and a window one in this order."""
        return [group.window is None for group in groups] in ([True], [True, False])

    def acquire(self, request: ScheduledRequest) -> list[list[int]]:
        """Lock the longest prefix that the request can start from; at least one token is left to compute.

        Returns its blocks by layer group: each with a reference taken, null where the window has passed.
        """
        found = self._find(request)
        nodes = self._windows.resumable(found)
        self._time += 1
        hold = PrefixHold(nodes[-1] if nodes else self._root, found[-1] if found else self._root)
        self._holds[request.request_id] = hold
        for node in nodes:
            node.last_used = self._time
            if node.is_prompt_end:
                hold.prompt_end = node
        tables = [[node.block for node in nodes]]
        self._pool.share(FULL, tables[FULL])
        if self._windows.exist:
            tables.append(self._windows.share(nodes))
        return tables

    def fork(self, parent: ScheduledRequest, child: ScheduledRequest) -> None:
        """Lock for the child the nodes of the blocks that its tables share with the parent's."""
        held = self._holds[parent.request_id]
        blocks = child.block_tables[FULL].block_ids
        nodes = held.node.path()[: len(blocks)]
        duplicates = [node.block for node, block in zip(nodes, blocks, strict=False) if node.block != block]
        self._pool.share(FULL, duplicates)
        node = nodes[-1] if nodes else self._root
        self._holds[child.request_id] = PrefixHold(node, node, held.prompt_end, duplicates)

    def search_end(self, request: ScheduledRequest) -> PrefixNode:
        """The node at which the search for the request's tokens ended."""
        return self._holds[request.request_id].search_end

    def may_match_more(self, node: PrefixNode, request: ScheduledRequest) -> bool:
        """Whether a search that ended at `node` might get further by now. True if that node is gone, since nobody knows then."""
        if node.parent is None and node is not self._root:
            return True
        end = (node.depth + 1) * self._block_size
        return end < len(request.token_ids) and self._keys(request, node.depth, node.depth + 1)[0] in node.children

    def prepare(self, request: ScheduledRequest, num_tokens: int) -> None:
        """Make the nodes of the request's first tokens, for `commit` to hang them into the tree: most of its work, done ahead of time."""
        hold = self._holds.get(request.request_id)
        if hold is not None:
            first, end = hold.depth, min(num_tokens, len(request.token_ids)) // self._block_size
            hold.prepare(self._keys(request, first, end), request.block_tables[FULL].block_ids[first:end])

    def commit(self, request: ScheduledRequest) -> None:
        """Cache the full blocks of what the request has collected."""
        hold = self._holds.get(request.request_id)
        size, num_blocks = self._block_size, request.num_collected_tokens // self._block_size
        if hold is None or num_blocks <= hold.node.depth:
            return
        self._time += 1
        start = hold.node
        self.prepare(request, num_blocks * size)
        nodes = self._join(hold, num_blocks) if start.children else []
        parting = nodes[-1] if nodes else start
        new = self._grow(hold, parting, num_blocks) if parting.depth < num_blocks else []
        nodes += new
        for node in nodes:
            node.last_used = self._time
        if self._windows.exist:
            self._keep_windows(nodes, request.block_tables[WINDOW].block_ids)
        # The same prompt would resume after this many blocks if it came again.
        prompt_end = (request.num_prompt_tokens - 1) // size
        if start.depth < prompt_end <= num_blocks:
            self._move_prompt_end(hold, nodes[prompt_end - start.depth - 1])
        hold.node = node = nodes[-1]
        del hold.ahead[: len(nodes)]
        if not new:
            return
        if node.parent is parting and parting.is_boundary and len(parting.children) == 1:
            self._windows.move_boundary(node)
        else:  # in this order, so that what both need stays needed throughout
            self._update_boundary(node)
            self._update_boundary(parting)

    def window_released(self, blocks: Iterable[int]) -> None:
        """Take note that a request let go of these window blocks."""
        self._windows.released(blocks)

    def tail_released(self, request: ScheduledRequest, block: int) -> None:
        """Take note that a fork let go of the full-group block after those that it locks. Its parent may have cached it since."""
        for node in self._holds[request.request_id].node.children.values():
            if node.block == block:
                self._offer(node)

    def let_go(self, request: ScheduledRequest) -> None:
        """Unlock the request's nodes, after its tables have been released. Idempotent."""
        hold = self._holds.pop(request.request_id, None)
        if hold is None:
            return
        self._pool.release(FULL, hold.duplicates)
        self._time += 1
        hold.node.last_used = self._time
        self._offer(hold.node)

    def observe_mass(self, block_mass: Sequence[float]) -> None:
        """Tell the policy how much each block of the full group has been attended to."""
        self._policy.observe(block_mass, self._time)
        self._queue.rerank()

    def evict(self) -> bool:
        """Give up one block, or one leaf, that no request uses. False if there is none.

        The order, in the words of `WindowBlocks`: spare window blocks; then, by the policy, leaves and wanted window blocks; last, needed
        window blocks of locked nodes, which can do without them.
        """
        windows = self._windows
        if windows.spare:
            self._drop_window(next(iter(windows.spare)))
            return True
        leaf = self._queue.first()
        wanted, needed = (next(iter(nodes), None) for nodes in (windows.wanted, windows.needed))
        if wanted is not None and (leaf is None or self._policy.rank(wanted) <= self._policy.rank(leaf)):
            self._drop_window(wanted)
        elif leaf is not None:
            self._remove(leaf)
        elif needed is not None:
            self._drop_window(needed)
        else:
            return False
        return True

    def _find(self, request: ScheduledRequest) -> list[PrefixNode]:
        """The nodes of the longest cached prefix, whether or not they still have their window blocks."""
        num_blocks = (len(request.token_ids) - 1) // self._block_size
        if not num_blocks or self._keys(request, 0, 1)[0] not in self._root.children:
            return []
        keys = self._keys(request, 0, num_blocks)
        whole = self._exact.key(keys)
        known = self._exact.get(whole)
        if known is not None:
            return known.path()
        nodes: list[PrefixNode] = []
        node = self._root
        for key in keys:
            child = node.children.get(key)
            if child is None:
                return nodes
            nodes.append(child)
            node = child
        if nodes:
            self._exact.put(whole, node)
        return nodes

    def _keys(self, request: ScheduledRequest, first: int, end: int) -> list[BlockKey]:
        """The keys of the request's blocks `first` to `end`, exclusive."""
        size = self._block_size
        keys = block_keys(request.token_ids[first * size : end * size], size)
        if not first and keys:
            keys[0] += request.cache_salt.encode()
        return keys

    def _join(self, hold: PrefixHold, num_blocks: int) -> list[PrefixNode]:
        """Lock the nodes of blocks that others cached before the request did, and keep one of the two blocks of each."""
        node, nodes = hold.node, []
        for own in hold.ahead[: num_blocks - node.depth]:
            child = node.children.get(own.key)
            if child is None:
                break
            if self._pool.ref_count(FULL, child.block):
                self._pool.share(FULL, [child.block])
                hold.duplicates.append(child.block)
            else:
                self._pool.drop(FULL, child.block)
                self._pool.keep(FULL, [own.block])
                child.block = own.block
            nodes.append(child)
            node = child
        return nodes

    def _grow(self, hold: PrefixHold, parting: PrefixNode, num_blocks: int) -> list[PrefixNode]:
        """Add the request's nodes below `parting`, the last of its path that is in the tree, down to `num_blocks` blocks."""
        nodes = hold.hang(parting, num_blocks)
        self._pool.keep(FULL, [node.block for node in nodes])
        if self._names is not None:
            for node in nodes:
                self._names.added(node)
        return nodes

    def _keep_windows(self, nodes: Sequence[PrefixNode], blocks: Sequence[int]) -> None:
        """Give the nodes on a request's path the window blocks that they lack. blocks: the request's window table."""
        lacking = [node for node in nodes if not node.window_block and blocks[node.depth - 1]]
        self._windows.keep(lacking, [blocks[node.depth - 1] for node in lacking])

    def _drop_window(self, node: PrefixNode) -> None:
        self._windows.drop(node)
        self.evicted_bytes += self._pool.layout.block_bytes(WINDOW)

    def _remove(self, leaf: PrefixNode) -> None:
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.key]
        self._update_boundary(parent)
        self._windows.set_boundary(leaf, False)
        self._windows.set_prompt_end(leaf, False)
        if leaf.window_block:
            self._drop_window(leaf)
        self._pool.drop(FULL, leaf.block)
        self.evicted_bytes += self._pool.layout.block_bytes(FULL)
        self._exact.forget(leaf)
        if self._names is not None:
            self._names.removed(leaf)
        leaf.parent = None
        self._offer(parent)

    def _update_boundary(self, node: PrefixNode) -> None:
        self._windows.set_boundary(node, node is not self._root and len(node.children) != 1)

    def _move_prompt_end(self, hold: PrefixHold, node: PrefixNode) -> None:
        """Make `node` the only prompt end of the request's sequence: a chat is not likely to resume before its latest prompt."""
        self._windows.set_prompt_end(node, True)
        if hold.prompt_end is not None and hold.prompt_end is not node:
            self._windows.set_prompt_end(hold.prompt_end, False)
        hold.prompt_end = node

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
        kept = {node.block for node in nodes}
        assert len(kept) == len(nodes), "two nodes keep one block"
        assert kept == {b for b in range(pool.layout.num_blocks(FULL)) if pool.is_kept(FULL, b)}, "a kept block is lost"
        for node in nodes:
            assert node.is_boundary == (len(node.children) != 1), "a boundary is off"
            locked_above = node.parent is self._root or pool.ref_count(FULL, node.parent.block if node.parent else 0)
            assert locked_above or not pool.ref_count(FULL, node.block), "a locked node below an unlocked one"
        assert self._queue.nodes() == {node for node in nodes if self._is_evictable(node)}, "an unlocked leaf is not on offer"
        self._windows.check_integrity(nodes)
