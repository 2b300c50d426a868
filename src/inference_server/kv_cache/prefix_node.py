"""`PrefixNode`: one block of tokens in the prefix tree. The tree itself, and all that changes nodes, is `PrefixCache`."""

from __future__ import annotations

from dataclasses import dataclass, field

BlockKey = tuple[int | str, ...]


@dataclass(slots=True, eq=False)
class PrefixNode:
    """A full block of tokens after those of `parent`. The root stands for no tokens; a node without a parent that is not the root is gone.

    key: the ids of its tokens; in the first block of a sequence the cache salt comes before them.
    depth: blocks from the root, this one included. last_used: a logical time.
    block: its KV in the full group. window_block: its KV in the window group, 0 where there is none (any more).
    is_boundary: a sequence ends here or several part here, so a later one is likely to resume here.
    is_prompt_end: the latest prompt of its sequence ends here; a chat that drops its model's thoughts resumes here.
    num_needing, num_wanting: boundaries, and prompt ends, behind which the first token still reads this window block.
    exact_key: its entry in the `ExactMatchIndex`.
    """

    parent: PrefixNode | None = field(default=None, repr=False)
    key: BlockKey = ()
    depth: int = 0
    block: int = 0
    window_block: int = 0
    last_used: int = 0
    is_boundary: bool = False
    is_prompt_end: bool = False
    num_needing: int = 0
    num_wanting: int = 0
    exact_key: bytes | None = None
    children: dict[BlockKey, PrefixNode] = field(default_factory=dict, repr=False)

    def path(self) -> list[PrefixNode]:
        """The nodes from below the root down to this one."""
        nodes, node = [], self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes
