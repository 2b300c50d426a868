"""How the KV arena is cut up: layer groups, blocks and slabs. Pure arithmetic, shared by the cache and the backends.

The arena is `num_slabs` equal slabs. A slab is the least common multiple of every group's block, and belongs to one group
while any of its blocks lives. Both groups are uniform-stride views of the whole arena: block `b` of a group starts at byte
`b * block_bytes`, so slab `s` holds blocks [s * blocks_per_slab, (s + 1) * blocks_per_slab). Slab 0 is reserved: block 0 of
every group is the null block, which padding reads and nothing owns.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil, lcm


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that keep the same tokens and so share one block table.

    layers: indices of the layers that own KV. itemsize: bytes of one number of a key or value.
    window: attended keys including self, or None for full attention.
    """

    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    itemsize: int
    window: int | None = None

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token over all layers of the group."""
        return 2 * len(self.layers) * self.num_kv_heads * self.head_dim * self.itemsize


@dataclass(frozen=True)
class KVLayout:
    """The sizes of a KV arena. Invariant: `slab_bytes` is a multiple of every group's block bytes."""

    groups: tuple[LayerGroup, ...]
    block_size: int
    num_slabs: int

    @classmethod
    def from_bytes(cls, groups: tuple[LayerGroup, ...], block_size: int, arena_bytes: int) -> "KVLayout":
        """The largest layout within `arena_bytes`; the reserved slab counts."""
        probe = cls(groups, block_size, num_slabs=0)
        return cls(groups, block_size, num_slabs=arena_bytes // probe.slab_bytes)

    @classmethod
    def from_num_blocks(cls, groups: tuple[LayerGroup, ...], block_size: int, num_blocks: int) -> "KVLayout":
        """A layout that can hold `num_blocks * block_size` tokens of every layer, beside the reserved slab."""
        probe = cls(groups, block_size, num_slabs=0)
        slabs = sum(ceil(num_blocks / probe.blocks_per_slab(g)) for g in range(len(groups)))
        return cls(groups, block_size, num_slabs=slabs + 1)

    @cached_property
    def slab_bytes(self) -> int:
        return lcm(*(self.block_bytes(g) for g in range(len(self.groups))))

    @property
    def arena_bytes(self) -> int:
        return self.num_slabs * self.slab_bytes

    def block_bytes(self, group: int) -> int:
        return self.groups[group].token_bytes * self.block_size

    def blocks_per_slab(self, group: int) -> int:
        return self.slab_bytes // self.block_bytes(group)

    def num_blocks(self, group: int) -> int:
        """Block ids of the group run from 0 (null) to this, exclusive; those of slab 0 are never handed out."""
        return self.num_slabs * self.blocks_per_slab(group)
