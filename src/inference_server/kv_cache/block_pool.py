"""`BlockPool`: which slabs belong to which layer group, and who still wants each block.

A block lives while it is *used*, by any number of references, or *kept* for later. One that is kept and not used (*unused*) counts
as available: its keeper has to drop it when an allocation falls short. A slab is opened for a group when the group needs it and goes back
when the last of its blocks dies, so the groups share the arena without fixed shares. Slabs remember the owner that opened
them: an owner fills its own slabs, then fresh ones, and the gaps in slabs of others only when nothing else is left. Knows
nothing of requests, tables or prefixes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import mul, sub

from inference_server.core.kv_layout import KVLayout

_NO_GROUP = -1


class BlockPool:
    """Ref-counted blocks of all layer groups of one arena. Taking, keeping and returning a block cost O(1)."""

    def __init__(self, layout: KVLayout) -> None:
        """Raises ValueError if the arena has no slab beside the reserved one."""
        if layout.num_slabs < 2:
            raise ValueError(f"a KV arena needs at least 2 slabs of {layout.slab_bytes} bytes, not {layout.num_slabs}")
        num_groups = len(layout.groups)
        self.layout = layout
        self._blocks_per_slab = [layout.blocks_per_slab(g) for g in range(num_groups)]
        self._block_bytes = [layout.block_bytes(g) for g in range(num_groups)]
        self._refs = [[0] * layout.num_blocks(g) for g in range(num_groups)]
        self._kept = [bytearray(layout.num_blocks(g)) for g in range(num_groups)]
        self._free_slabs = list(range(layout.num_slabs - 1, 0, -1))
        self._slab_group = [_NO_GROUP] * layout.num_slabs
        self._slab_owner: list[str | None] = [None] * layout.num_slabs
        self._slab_gaps: list[list[int]] = [[] for _ in range(layout.num_slabs)]
        # Dicts serve as ordered sets of the slabs that have gaps.
        self._gappy: list[dict[int, None]] = [{} for _ in range(num_groups)]
        self._gappy_by_owner: dict[str, list[dict[int, None]]] = {}
        self._num_gaps = [0] * num_groups
        self._num_used = [0] * num_groups
        self._num_kept = [0] * num_groups
        self._num_unused = [0] * num_groups  # kept, and without a reference
        self._slab_used = [0] * layout.num_slabs
        self._num_used_slabs = [0] * num_groups

    def num_used(self, group: int) -> int:
        """Blocks of the group that are referenced."""
        return self._num_used[group]

    def ref_count(self, group: int, block: int) -> int:
        return self._refs[group][block]

    def is_kept(self, group: int, block: int) -> bool:
        return bool(self._kept[group][block])

    @property
    def num_free_slabs(self) -> int:
        return len(self._free_slabs)

    @property
    def used_bytes(self) -> int:
        """Bytes of all referenced blocks."""
        return sum(map(mul, self._num_used, self._block_bytes))

    @property
    def unused_bytes(self) -> int:
        """Bytes of all blocks that are kept and not referenced."""
        return sum(map(mul, self._num_unused, self._block_bytes))

    @property
    def pinned_bytes(self) -> int:
        """Bytes of all blocks that are kept and referenced: cached, but nothing that could be dropped now."""
        return sum(map(mul, map(sub, self._num_kept, self._num_unused), self._block_bytes))

    @property
    def total_bytes(self) -> int:
        """Bytes that can be handed out: the arena without the reserved slab."""
        return (self.layout.num_slabs - 1) * self.layout.slab_bytes

    def fits(self, counts: Sequence[int], spare_slabs: int = 0) -> bool:
        """Whether counts[g] blocks of each group can be taken once all unused ones are dropped, with `spare_slabs` slabs left over."""
        left = len(self._slab_group) - 1 - spare_slabs
        for group, count in enumerate(counts):
            per_slab, slabs = self._blocks_per_slab[group], self._num_used_slabs[group]
            short = count + self._num_used[group] - slabs * per_slab
            left -= slabs + (-(-short // per_slab) if short > 0 else 0)
        return left >= 0

    def fits_when_empty(self, counts: Sequence[int]) -> bool:
        """Whether counts[g] blocks of each group could be taken if nothing else were."""
        slabs = sum(-(-count // per_slab) for count, per_slab in zip(counts, self._blocks_per_slab, strict=True))
        return slabs < self.layout.num_slabs

    def allocate(self, owner: str, counts: Sequence[int]) -> list[list[int]] | None:
        """Take counts[g] blocks of each group, each with one reference; None, and nothing taken, when too few are free."""
        if len(self._free_slabs) >= sum(counts):  # a slab for each block: no group has to leave any for those after it
            to_open = [0] * len(counts)
        else:
            to_open = [self._slabs_to_open(g, count) for g, count in enumerate(counts)]
        reserved = sum(to_open)
        if reserved > len(self._free_slabs):
            return None
        taken = []
        for group, count in enumerate(counts):
            reserved -= to_open[group]
            taken.append(self._take(owner, group, count, reserved) if count else [])
        return taken

    def slabs_short(self, counts: Sequence[int]) -> int:
        """Slabs that have to become free before counts[g] blocks of each group can be taken. Dropping a block frees one slab at most."""
        return max(0, sum(map(self._slabs_to_open, range(len(counts)), counts)) - len(self._free_slabs))

    def share(self, group: int, blocks: Iterable[int]) -> None:
        """Add a reference to each block. Raises ValueError if one is not live."""
        refs, kept = self._refs[group], self._kept[group]
        for block in blocks:
            if refs[block] == 0:
                if not kept[block]:
                    raise ValueError(f"block {block} of group {group} is not live")
                self._num_unused[group] -= 1
                self._count_used(group, block // self._blocks_per_slab[group], 1)
            refs[block] += 1

    def release(self, group: int, blocks: Iterable[int]) -> None:
        """Drop one reference of each block; one that is left without any is free unless kept. Raises ValueError if a block has none."""
        refs, kept, per_slab, slab_used = self._refs[group], self._kept[group], self._blocks_per_slab[group], self._slab_used
        num_let_go = num_kept = num_slabs = 0
        for block in blocks:
            if refs[block] <= 0:
                raise ValueError(f"block {block} of group {group} is not live")
            refs[block] -= 1
            if refs[block] == 0:
                slab = block // per_slab
                slab_used[slab] -= 1
                num_slabs += slab_used[slab] == 0
                num_let_go += 1
                if kept[block]:
                    num_kept += 1
                else:
                    self._return(group, block)
        self._num_used[group] -= num_let_go
        self._num_used_slabs[group] -= num_slabs
        self._num_unused[group] += num_kept

    def keep(self, group: int, blocks: Sequence[int]) -> None:
        """Let used blocks outlive their references. Raises ValueError if a block has no reference, or is kept already."""
        refs, kept = self._refs[group], self._kept[group]
        for block in blocks:
            if refs[block] <= 0 or kept[block]:
                raise ValueError(f"block {block} of group {group} is not live, or kept twice")
            kept[block] = 1
        self._num_kept[group] += len(blocks)

    def drop(self, group: int, block: int) -> None:
        """Undo `keep`: a block without a reference is then free. Raises ValueError if it is not kept."""
        if not self._kept[group][block]:
            raise ValueError(f"block {block} of group {group} is not kept")
        self._kept[group][block] = 0
        self._num_kept[group] -= 1
        if self._refs[group][block] == 0:
            self._num_unused[group] -= 1
            self._return(group, block)

    def forget(self, owner: str) -> None:
        """Forget an owner that takes no more blocks: the gaps in its slabs are for everyone."""
        self._gappy_by_owner.pop(owner, None)

    def _slabs_to_open(self, group: int, count: int) -> int:
        """Slabs that the group needs, once all its gaps are filled, to take `count` blocks."""
        short = count - self._num_gaps[group]
        return -(-short // self._blocks_per_slab[group]) if short > 0 else 0

    def _take(self, owner: str, group: int, count: int, reserved: int) -> list[int]:
        """Take blocks that are known to fit, and leave `reserved` free slabs for the groups after this one."""
        refs = self._refs[group]
        taken: list[int] = []
        while len(taken) < count:
            if whole := self._take_whole_slabs(owner, group, count - len(taken), reserved):
                taken += whole
                continue
            slab = self._choose_slab(owner, group, reserved)
            gaps = self._slab_gaps[slab]
            num_here = min(len(gaps), count - len(taken))
            for _ in range(num_here):
                block = gaps.pop()
                refs[block] = 1
                taken.append(block)
            self._num_gaps[group] -= num_here
            self._count_used(group, slab, num_here)
            if not gaps:
                self._drop_from_gappy(group, slab)
        return taken

    def _take_whole_slabs(self, owner: str, group: int, count: int, reserved: int) -> list[int]:
        """Take all blocks of as many fresh slabs as `count` fills: these never have gaps. Takes none if the owner has gaps to fill."""
        own, per_slab = self._gappy_by_owner.setdefault(owner, [{} for _ in self._refs]), self._blocks_per_slab[group]
        number = min(count // per_slab, len(self._free_slabs) - reserved)
        if number <= 0 or own[group]:
            return []
        slabs = self._free_slabs[: -number - 1 : -1]
        del self._free_slabs[-number:]
        for slab in slabs:
            self._slab_group[slab], self._slab_owner[slab], self._slab_used[slab] = group, owner, per_slab
        self._num_used_slabs[group] += number
        self._num_used[group] += number * per_slab
        taken = [block for slab in slabs for block in range(slab * per_slab, (slab + 1) * per_slab)]
        refs = self._refs[group]
        for block in taken:
            refs[block] = 1
        return taken

    def _count_used(self, group: int, slab: int, change: int) -> None:
        """Book that `change` more blocks of a slab are referenced."""
        before = self._slab_used[slab]
        self._slab_used[slab] = before + change
        self._num_used[group] += change
        self._num_used_slabs[group] += (before + change > 0) - (before > 0)

    def _choose_slab(self, owner: str, group: int, reserved: int) -> int:
        own = self._gappy_by_owner.get(owner)
        if own and own[group]:
            return next(reversed(own[group]))
        if len(self._free_slabs) > reserved:
            return self._open_slab(owner, group)
        return next(iter(self._gappy[group]))

    def _open_slab(self, owner: str, group: int) -> int:
        slab = self._free_slabs.pop()
        per_slab = self._blocks_per_slab[group]
        self._slab_group[slab] = group
        self._slab_owner[slab] = owner
        self._slab_gaps[slab] = list(range((slab + 1) * per_slab - 1, slab * per_slab - 1, -1))
        self._num_gaps[group] += per_slab
        self._add_to_gappy(group, slab, self._gappy_by_owner[owner])
        return slab

    def _return(self, group: int, block: int) -> None:
        slab = block // self._blocks_per_slab[group]
        gaps = self._slab_gaps[slab]
        gaps.append(block)
        self._num_gaps[group] += 1
        if len(gaps) == self._blocks_per_slab[group]:
            self._close_slab(group, slab)
        elif len(gaps) == 1:
            self._add_to_gappy(group, slab, self._gappy_by_owner.get(self._slab_owner[slab] or ""))

    def _close_slab(self, group: int, slab: int) -> None:
        self._drop_from_gappy(group, slab)
        self._num_gaps[group] -= self._blocks_per_slab[group]
        self._slab_gaps[slab] = []
        self._slab_group[slab] = _NO_GROUP
        self._slab_owner[slab] = None
        self._free_slabs.append(slab)

    def _add_to_gappy(self, group: int, slab: int, own: list[dict[int, None]] | None) -> None:
        self._gappy[group][slab] = None
        if own is not None:
            own[group][slab] = None

    def _drop_from_gappy(self, group: int, slab: int) -> None:
        self._gappy[group].pop(slab, None)
        own = self._gappy_by_owner.get(self._slab_owner[slab] or "")
        if own is not None:
            own[group].pop(slab, None)

    def check_integrity(self) -> None:
        """Recount everything. Raises AssertionError with what is off; costs time linear in the arena."""
        free = set(self._free_slabs)
        assert len(free) == len(self._free_slabs) and 0 not in free, "free slabs repeat or hold the reserved slab"
        assert free == {s for s in range(1, self.layout.num_slabs) if self._slab_group[s] == _NO_GROUP}, "a slab is lost"
        for group, per_slab in enumerate(self._blocks_per_slab):
            used = {block for block, refs in enumerate(self._refs[group]) if refs}
            live = used | {block for block, kept in enumerate(self._kept[group]) if kept}
            slabs = {slab for slab, owner in enumerate(self._slab_group) if owner == group}
            gaps = {block for slab in slabs for block in self._slab_gaps[slab]}
            assert min(self._refs[group]) >= 0, "a negative reference count"
            assert not live & gaps, "a block is both live and free"
            assert live | gaps == {slab * per_slab + i for slab in slabs for i in range(per_slab)}, "a block is lost"
            assert slabs == {block // per_slab for block in live}, "a slab without live blocks is still owned"
            counters = self._num_used[group], self._num_unused[group], self._num_gaps[group]
            assert counters == (len(used), len(live - used), len(gaps)), "used, unused and free do not add up"
            assert self._num_kept[group] == sum(self._kept[group]), "the kept blocks are off"
            used_in = Counter(block // per_slab for block in used)
            assert all(self._slab_used[slab] == used_in[slab] for slab in slabs), "a slab's used blocks are off"
            assert self._num_used_slabs[group] == len(used_in), "the used slabs are off"
            assert set(self._gappy[group]) == {block // per_slab for block in gaps}, "the slabs with gaps are off"
        for owner, own in self._gappy_by_owner.items():
            for group, slabs_of_owner in enumerate(own):
                assert all(self._slab_owner[s] == owner and s in self._gappy[group] for s in slabs_of_owner), "an owner is off"
