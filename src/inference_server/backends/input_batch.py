"""`InputBatch`: turns a step plan into the tensors of one forward, once a step.

Block tables are kept by slot between steps and only grow by what is new, so a decode row costs a few list look-ups; everything
for each token is array arithmetic. It knows no model and runs nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference_server.backends.block_mass import BlockMass
from inference_server.core.kv_layout import KVLayout
from inference_server.core.plan import StepPlan
from inference_server.core.request import ScheduledRequest
from inference_server.kernels.ops import Ops
from inference_server.kernels.step_rows import StepRows
from inference_server.models.attention import AttentionMetadata, GroupMetadata

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """The arguments of one forward. sampling_tokens: int64 [sampling rows], where in the flat batch their last tokens are."""

    input_ids: Tensor
    positions: Tensor
    metadata: AttentionMetadata
    sampling_tokens: Tensor


class InputBatch:
    """Builds `ModelInputs`. One for each arena; slots run from 0 to max_slots, exclusive.

    block_mass: what decoding rows attend to, of the group of full-attention layers; None unless it is to be measured.
    """

    def __init__(
        self, layout: KVLayout, max_slots: int, max_model_len: int, device: torch.device, ops: Ops, measure_mass: bool = False
    ) -> None:
        self.device = device
        self._ops = ops
        self.block_mass = BlockMass(layout, device) if measure_mass else None
        self._block_size = layout.block_size
        self._windows = [group.window for group in layout.groups]
        width = ceil(max_model_len / layout.block_size)
        self._tables = [np.zeros((max_slots, width), dtype=np.int32) for _ in layout.groups]
        self._known = [[0] * max_slots for _ in layout.groups]  # block ids copied, by group and slot
        self._tenants: list[ScheduledRequest | None] = [None] * max_slots
        self._stays = [0] * max_slots  # the tenant's preemptions when its blocks were copied: it returns with others

    def build(self, plan: StepPlan, last_token_ids: Tensor) -> ModelInputs:
        """last_token_ids: int64 [max_slots] on the device, each slot's newest sampled token."""
        if self.block_mass is not None:
            self.block_mass.clear_reused(plan)
        row_slots = [request.slot for request in plan.requests]
        slots = np.array(row_slots)
        starts, counts = np.array(plan.starts), np.array(plan.num_new_tokens)
        ends, cu_seqlens = starts + counts, np.concatenate(([0], counts.cumsum()))
        self._update_tables(plan.requests, row_slots)
        positions = np.arange(cu_seqlens[-1]) + (starts - cu_seqlens[:-1]).repeat(counts)
        token_ids, on_device = _token_ids(plan)
        input_ids = self._to_device(token_ids)
        if on_device:
            unknown = np.array(on_device)
            input_ids[self._to_device(cu_seqlens[unknown + 1] - 1)] = last_token_ids[self._to_device(slots[unknown])]
        max_seq_len = int(ends.max())
        width = ceil(max_seq_len / self._block_size)
        cu_seqlens_q, seq_lens = self._to_device(cu_seqlens.astype(np.int32)), self._to_device(ends.astype(np.int32))
        rows = StepRows(cu_seqlens.tolist(), ends.tolist(), cu_seqlens_q, seq_lens, num_single=int((counts == 1).sum()))
        groups = []
        for table, window in zip(self._tables, self._windows, strict=True):
            slot_mapping = self._to_device(self._slot_mapping(table, slots.repeat(counts), positions))
            block_tables = self._to_device(table[slots, :width])
            mass = self.block_mass.values if self.block_mass and window is None else None
            attention = self._ops.bind_attention(block_tables, rows, window, self._block_size, mass)
            groups.append(GroupMetadata(slot_mapping, block_tables, window, attention))
        metadata = AttentionMetadata(
            groups=tuple(groups),
            cu_seqlens_q=cu_seqlens_q,
            seq_lens=seq_lens,
            num_single=rows.num_single,
            max_query_len=int(counts.max()),
            max_seq_len=max_seq_len,
        )
        sampling_tokens = cu_seqlens[1:][np.array(plan.samples, dtype=bool)] - 1
        return ModelInputs(input_ids, self._to_device(positions), metadata, self._to_device(sampling_tokens))

    def _update_tables(self, requests: Sequence[ScheduledRequest], slots: list[int]) -> None:
        """Copy the block ids that are new since the slot's step before; all of them for a new or returning tenant.

        A block that has left the window becomes null in the request's table and stays stale here: no kernel reads it.
        """
        tenants, stays = self._tenants, self._stays
        for request, slot in zip(requests, slots, strict=True):
            if tenants[slot] is not request or stays[slot] != request.num_preemptions:
                tenants[slot], stays[slot] = request, request.num_preemptions
                for known in self._known:
                    known[slot] = 0
        for group, (table, known) in enumerate(zip(self._tables, self._known, strict=True)):
            for request, slot in zip(requests, slots, strict=True):
                block_ids = request.block_tables[group].block_ids
                if len(block_ids) > known[slot]:
                    table[slot, known[slot] : len(block_ids)] = block_ids[known[slot] :]
                    known[slot] = len(block_ids)

    def _slot_mapping(self, table: NDArray[np.int32], slot_of_token: IntArray, positions: IntArray) -> IntArray:
        blocks = table[slot_of_token, positions // self._block_size].astype(np.int64)
        return blocks * self._block_size + positions % self._block_size

    def _to_device(self, array: NDArray) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)


def _token_ids(plan: StepPlan) -> tuple[IntArray, list[int]]:
    """The ids of all tokens, row after row, and the rows whose last id is still on the device (0 stands for it here)."""
    token_ids: list[int] = []
    on_device: list[int] = []
    for row, (request, start, count) in enumerate(zip(plan.requests, plan.starts, plan.num_new_tokens, strict=True)):
        known = request.token_ids
        if start + count > len(known):
            on_device.append(row)
            token_ids += known[start:]
            token_ids.append(0)
        elif count == 1:
            token_ids.append(known[start])
        else:
            token_ids += known[start : start + count]
    return np.array(token_ids, dtype=np.int64), on_device
