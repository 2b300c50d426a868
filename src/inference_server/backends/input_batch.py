"""`InputBatch`: the inputs of every forward, in memory that lives as long as the arena; a step writes only what it changes.

For each row the host sends five numbers, the ids of known tokens, and the block ids that are new since the row's step before. The device
works out positions and slot mappings, and has the sampled ids already (`place_tokens`). Rows that go on decoding cost no Python: numpy adds
one to the lengths by slot. It knows no model and runs none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil

import numpy as np
import torch
from torch import Tensor

from inference_server.backends.staged_rows import IntArray, Sections, StagedRows, StepShape
from inference_server.backends.staging import Staging
from inference_server.core.kv_layout import KVLayout
from inference_server.core.plan import StepPlan
from inference_server.core.request import ScheduledRequest
from inference_server.kernels.ops import Attention, Ops
from inference_server.kernels.step_rows import StepRows, TokenPlaces
from inference_server.models.attention import AttentionMetadata, GroupMetadata, SampledTokens

_MAX_NEW_BLOCKS = 16384  # of one step, sent beside its rows; a step with more sends whole tables


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """The arguments of one forward, as views of the batch's memory.

    sampled_tokens: int32 [rows], where in the flat batch the sampling rows' last tokens are. `InputBatch.place` fills `places`.
    """

    rows: StepRows
    places: TokenPlaces
    known_ids: Tensor
    metadata: AttentionMetadata
    sampled_tokens: Tensor


class InputBatch:
    """One for each arena; slots run from 0 to max_rows, exclusive. newest_ids: int64 [max_rows + 1], the newest sampled id of each slot.

    max_tokens: the most tokens of a step. The slot max_rows is the padding's. block_mass: where decoding rows add what they attend to
    (see `reference.bind_attention`), for the group of full-attention layers; None unless it is to be measured.
    """

    def __init__(
        self,
        layout: KVLayout,
        max_rows: int,
        max_tokens: int,
        max_model_len: int,
        device: torch.device,
        ops: Ops,
        block_mass: Tensor | None = None,
    ) -> None:
        self._ops = ops
        self._block_mass = block_mass
        self.max_rows = max_rows
        self.max_model_len = max_model_len
        self._block_size = layout.block_size
        self._windows = [group.window for group in layout.groups]
        num_groups, width = len(layout.groups), ceil(max_model_len / layout.block_size)
        self._host_tables = np.zeros((num_groups, max_rows + 1, width), dtype=np.int32)
        self._tables = torch.from_numpy(self._host_tables)
        if device.type != "cpu":
            self._tables = self._tables.to(device)
        self._num_known = np.zeros(max_rows + 1, dtype=np.int64)  # block ids in each table of a slot
        self._ends = np.zeros(max_rows + 1, dtype=np.int64)  # by slot, where the step before ended
        self._rows: list[ScheduledRequest] = []  # of the step before, and their slots
        self._slots = np.zeros(0, dtype=np.int64)
        self._tenants: list[ScheduledRequest | None] = [None] * max_rows
        self._stays = [0] * max_rows  # the tenant's preemptions when its blocks were copied: after another it has new ones
        self._token_offset = Sections.size(max_rows)
        self._staging = Staging(self._token_offset + max_tokens + 2 * _MAX_NEW_BLOCKS, device)
        self._sides = [StagedRows(buffer, max_rows) for buffer in self._staging.sides]
        self._places = TokenPlaces(
            torch.zeros(max_tokens, dtype=torch.int64, device=device),
            torch.zeros(max_tokens, dtype=torch.int64, device=device),
            torch.zeros((num_groups, max_tokens), dtype=torch.int64, device=device),
        )
        self.newest_ids = torch.zeros(max_rows + 1, dtype=torch.int64, device=device)
        self._single_starts = torch.arange(max_rows + 1, dtype=torch.int32, device=device)

    @property
    def sampled_slots(self) -> Tensor:
        """int32 [max_rows], the slots of the sampling rows, padded with the padding's slot."""
        return Sections.of(self._staging.device, self.max_rows).sampled_slots

    def keep(self, ids: Tensor, out: Tensor) -> None:
        """Keep the ids, int64 [rows], of the staged step's sampling rows: each as its slot's newest, all in the first places of `out`."""
        self._ops.keep_tokens(ids, self.sampled_slots[: len(ids)], self.newest_ids, out)

    def stage(self, plan: StepPlan, shape: StepShape) -> None:
        """Send the plan's numbers to the device, padded to the shape. The next forward of this shape computes this plan."""
        side = self._sides[self._staging.begin()]
        slots = self._slots_of(plan)
        ends = self._ends[slots] + 1 if plan.num_decodes == len(plan) else np.array(_lengths(plan), dtype=np.int64)
        side.write(plan, shape, slots, ends)
        self._ends[slots] = ends
        self._settle(plan.requests[plan.num_decodes :])
        buffer, stop = side.buffer, self._token_offset + shape.num_tokens
        places, block_ids = self._new_blocks(plan.requests, slots, ends)
        num_new = len(places)
        on_host = self._tables.device.type == "cpu"
        if on_host or num_new > _MAX_NEW_BLOCKS:
            self._staging.send(stop)
            if not on_host:
                self._tables.copy_(torch.from_numpy(self._host_tables))
            return
        buffer[stop : stop + num_new], buffer[stop + num_new : stop + 2 * num_new] = places, block_ids
        self._staging.send(stop + 2 * num_new)
        if num_new:
            sent = self._staging.device
            self._tables.view(-1)[sent[stop : stop + num_new]] = sent[stop + num_new : stop + 2 * num_new]

    def inputs(self, shape: StepShape, plan: StepPlan | None = None) -> ModelInputs:
        """The views that a forward of this shape reads. plan: the step, if it runs at once and without padding; None takes upper bounds."""
        tokens, num_rows = shape.num_tokens, shape.num_rows
        if plan is None:
            starts = list(range(num_rows + 1)) if shape.only_singles else [0] * num_rows + [tokens]
            lengths = [self.max_model_len] * num_rows
            num_single = num_rows
        else:
            starts = [0, *accumulate(plan.num_new_tokens)]
            lengths = _lengths(plan)
            num_single = plan.num_new_tokens.count(1)
        sections = Sections.of(self._staging.device, self.max_rows)
        rows = StepRows(
            starts, lengths, sections.cu_seqlens[: num_rows + 1], sections.seq_lens[:num_rows], num_single, sections.slots[:num_rows]
        )
        places = TokenPlaces(self._places.input_ids[:tokens], self._places.positions[:tokens], self._places.slot_mapping[:, :tokens])
        sampled = None if shape.num_sampled is None else self._sampled(sections, shape.num_sampled, plan)
        metadata = AttentionMetadata(self._groups(places.slot_mapping, rows), sampled)
        known_ids = self._staging.device[self._token_offset :][:tokens]
        return ModelInputs(rows, places, known_ids, metadata, sections.sampled_tokens[:num_rows])

    def place(self, inputs: ModelInputs) -> None:
        """Fill `places` with the ids, positions and slots of the staged step's tokens."""
        self._ops.place_tokens(inputs.rows, inputs.known_ids, self.newest_ids, self._tables, self._block_size, inputs.places)

    def _sampled(self, sections: Sections, count: int, plan: StepPlan | None) -> SampledTokens:
        """The last tokens of the sampling rows, padding included, as rows of one token each."""
        if plan is None:
            lengths = [self.max_model_len] * count
        else:
            lengths = [length for length, samples in zip(_lengths(plan), plan.samples, strict=True) if samples]
        starts, slots = self._single_starts[: count + 1], sections.sampled_slots[:count]
        rows = StepRows(list(range(count + 1)), lengths, starts, sections.sampled_lens[:count], count, slots)
        nothing_to_store = self._places.slot_mapping[:, :0]
        return SampledTokens(sections.sampled_tokens[:count], AttentionMetadata(self._groups(nothing_to_store, rows, measured=False)))

    def _groups(self, slot_mapping: Tensor, rows: StepRows, measured: bool = True) -> tuple[GroupMetadata, ...]:
        """measured: whether to add to the mass. Rows of sampled tokens do not: nothing tells those of prompts from those that decode."""
        return tuple(
            GroupMetadata(mapping, self._bind_attention(table, rows, window, measured))
            for mapping, table, window in zip(slot_mapping, self._tables, self._windows, strict=True)
        )

    def _bind_attention(self, block_tables: Tensor, rows: StepRows, window: int | None, measured: bool) -> Attention:
        block_mass = self._block_mass if measured and window is None else None
        return self._ops.bind_attention(block_tables, rows, window, self._block_size, block_mass)

    def _slots_of(self, plan: StepPlan) -> IntArray:
        """The rows' slots: where the rows of the step before go on, that step's array object, by which `StagedRows` knows them."""
        if not plan.repeats(self._rows):
            self._rows = plan.requests
            self._slots = np.array([request.slot for request in plan.requests], dtype=np.int64)
        return self._slots

    def _settle(self, requests: Sequence[ScheduledRequest]) -> None:
        """Forget which blocks are known of slots whose tenant is new or has come back."""
        tenants, stays = self._tenants, self._stays
        for request in requests:
            slot = request.slot
            if tenants[slot] is not request or stays[slot] != request.num_preemptions:
                tenants[slot], stays[slot] = request, request.num_preemptions
                self._num_known[slot] = 0

    def _new_blocks(self, requests: Sequence[ScheduledRequest], slots: IntArray, ends: IntArray) -> tuple[IntArray, IntArray]:
        """Copy the block ids that are new since the slot's step before.

        Returns where in the flat tables something changed, and to what. A block that has left the window becomes null in the request's
        table and stays stale here: no kernel reads it.
        """
        places: list[int] = []
        new_ids: list[int] = []
        known, needed = self._num_known[slots], -(-ends // self._block_size)
        rows = np.flatnonzero(known < needed)
        if not len(rows):
            return rows, rows
        _, num_slots, width = self._host_tables.shape
        for row, first, last in zip(rows.tolist(), known[rows].tolist(), needed[rows].tolist(), strict=True):
            request = requests[row]
            for group, table in enumerate(request.block_tables):
                line = (group * num_slots + request.slot) * width
                places += range(line + first, line + last)
                new_ids += table.block_ids[first:last]
        self._num_known[slots[rows]] = needed[rows]
        changed = np.array(places), np.array(new_ids)
        self._host_tables.reshape(-1)[changed[0]] = changed[1]
        return changed


def _lengths(plan: StepPlan) -> list[int]:
    """The length of each row, its new tokens included."""
    return [start + count for start, count in zip(plan.starts, plan.num_new_tokens, strict=True)]
