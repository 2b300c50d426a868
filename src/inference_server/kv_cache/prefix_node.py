"""`PrefixNode`: one block of tokens in the prefix tree. The tree itself, and all that changes nodes, is `PrefixCache`."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

BlockKey = bytes
_ID = "i"  # int32: a tuple of ids would be six times as large, and hashed anew at each look-up


def block_keys(token_ids: Sequence[int], block_size: int) -> list[BlockKey]:
    """One key for each block; `token_ids` are whole blocks. The caller appends the cache salt to the key of a sequence's first block."""
    ids = array(_ID, token_ids)
    data, width = ids.tobytes(), block_size * ids.itemsize
    return [data[start : start + width] for start in range(0, len(data), width)]


def key_parts(key: BlockKey, block_size: int) -> tuple[array[int], str]:
    """The token ids of a key, and the cache salt, which follows them in the first block of a sequence and is empty in others."""
    ids = array(_ID)
    width = block_size * ids.itemsize
    ids.frombytes(key[:width])
    return ids, key[width:].decode()


@dataclass(slots=True, eq=False)
class PrefixNode:
    """A full block of tokens after those of `parent`. The root stands for no tokens; a node without a parent that is not the root is gone.

    key: the ids of its tokens; in the first block of a sequence the cache salt comes behind them. See `key_parts`.
    depth: blocks from the root, this one included. last_used: a logical time.
    block: its KV in the full group. window_block: its KV in the window group, 0 where there is none (any more).
    is_boundary: a sequence ends here or several part here, so a later one is likely to resume here.
    is_prompt_end: the latest prompt of its sequence ends here; a chat that drops its model's thoughts resumes here.
    num_needing, num_wanting: how many boundaries, and how many prompt ends, are so near that the first token behind them reads this
    window block.
    home: which of the ordered sets of `WindowBlocks` it is in. exact_key: its entry in the `ExactMatchIndex`.
    """

    parent: PrefixNode | None = field(default=None, repr=False)
    key: BlockKey = b""
    depth: int = 0
    block: int = 0
    window_block: int = 0
    last_used: int = 0
    is_boundary: bool = False
    is_prompt_end: bool = False
    num_needing: int = 0
    num_wanting: int = 0
    home: OrderedDict[PrefixNode, None] | None = field(default=None, repr=False)
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
