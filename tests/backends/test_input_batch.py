"""The tensors of a step, against what the plan says, and that a slot's tables follow its tenant."""

import pytest
import torch

from inference_server.backends.input_batch import InputBatch, ModelInputs
from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.core.plan import StepPlan
from inference_server.core.request import BlockTable, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.kernels import reference

BLOCK = 4
NEWEST = torch.tensor([100, 101, 102, 103])


@pytest.fixture
def batch() -> InputBatch:
    groups = (LayerGroup((1,), 1, 8, 4), LayerGroup((0,), 1, 8, 4, window=6))
    layout = KVLayout(groups, BLOCK, num_slabs=50)
    return InputBatch(layout, max_slots=4, max_model_len=64, device=torch.device("cpu"), ops=reference)


def make(tokens: list[int], slot: int, *tables: list[int]) -> ScheduledRequest:
    return ScheduledRequest(str(slot), tokens, SamplingParams(), 0.0, slot=slot, block_tables=[BlockTable(ids) for ids in tables])


def build(batch: InputBatch, *rows: tuple[ScheduledRequest, int, int, bool]) -> ModelInputs:
    plan = StepPlan(0)
    for row in rows:
        plan.add(*row)
    return batch.build(plan, NEWEST)


def test_a_mixed_step(batch: InputBatch) -> None:
    decode, chunk = make([5, 6, 7, 8, 9], 2, [3, 4], [7, 8]), make(list(range(20, 31)), 0, [9, 10, 11], [12, 13, 14])
    inputs = build(batch, (decode, 4, 1, True), (chunk, 3, 6, False))
    assert inputs.input_ids.tolist() == [9, 23, 24, 25, 26, 27, 28]
    assert inputs.positions.tolist() == [4, 3, 4, 5, 6, 7, 8]
    assert inputs.sampling_tokens.tolist() == [0]
    metadata = inputs.metadata
    assert metadata.cu_seqlens_q.tolist() == [0, 1, 7]
    assert metadata.seq_lens.tolist() == [5, 9]
    assert (metadata.num_single, metadata.max_query_len, metadata.max_seq_len) == (1, 6, 9)
    full, window = metadata.groups
    assert (full.window, window.window) == (None, 6)
    assert full.slot_mapping.tolist() == [4 * BLOCK, 9 * BLOCK + 3, *range(10 * BLOCK, 11 * BLOCK), 11 * BLOCK]
    assert window.slot_mapping.tolist() == [8 * BLOCK, 12 * BLOCK + 3, *range(13 * BLOCK, 14 * BLOCK), 14 * BLOCK]
    assert full.block_tables.tolist() == [[3, 4, 0], [9, 10, 11]]
    assert full.block_tables.dtype == metadata.cu_seqlens_q.dtype == metadata.seq_lens.dtype == torch.int32


def test_ids_that_were_not_collected_come_from_the_device(batch: InputBatch) -> None:
    waiting, known = make([5, 6], 3, [1], [1]), make([7, 8], 1, [2], [2])
    inputs = build(batch, (waiting, 2, 1, True), (known, 1, 1, True))
    assert inputs.input_ids.tolist() == [103, 8]
    longer = build(batch, (waiting, 1, 2, True))
    assert longer.input_ids.tolist() == [6, 103]


def test_tables_grow_and_are_replaced_with_the_tenant(batch: InputBatch) -> None:
    first = make(list(range(12)), 0, [1], [1])
    assert build(batch, (first, 3, 1, True)).metadata.groups[0].block_tables.tolist() == [[1]]
    first.block_tables[0].block_ids.append(2)
    first.block_tables[1].block_ids.append(5)
    grown = build(batch, (first, 4, 1, True)).metadata
    assert [group.block_tables.tolist() for group in grown.groups] == [[[1, 2]], [[1, 5]]]
    second = make(list(range(12)), 0, [8, 9], [8, 9])
    assert build(batch, (second, 4, 1, True)).metadata.groups[0].block_tables.tolist() == [[8, 9]]
    second.num_preemptions += 1
    second.block_tables = [BlockTable([6, 7]), BlockTable([6, 7])]
    assert build(batch, (second, 4, 1, True)).metadata.groups[1].block_tables.tolist() == [[6, 7]]
