"""The inputs of a step are what the plan says, and a slot's block tables are those of the request in it."""

from types import SimpleNamespace

import pytest
import torch

from inference_server.backends.input_batch import InputBatch, ModelInputs
from inference_server.backends.staged_rows import StepShape
from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.core.plan import StepPlan
from inference_server.core.request import BlockTable, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.kernels import reference
from inference_server.kernels.step_rows import StepRows

BLOCK = 4
NEWEST = torch.tensor([100, 101, 102, 103, 104])  # the last one is the padding's


@pytest.fixture
def batch() -> InputBatch:
    groups = (LayerGroup((1,), 1, 8, 4), LayerGroup((0,), 1, 8, 4, window=6))
    layout = KVLayout(groups, BLOCK, num_slabs=50)
    batch = InputBatch(layout, max_rows=4, max_tokens=64, max_model_len=64, device=torch.device("cpu"), ops=reference)
    batch.newest_ids.copy_(NEWEST)
    return batch


def make(tokens: list[int], slot: int, *tables: list[int]) -> ScheduledRequest:
    return ScheduledRequest(str(slot), tokens, SamplingParams(), 0.0, slot=slot, block_tables=[BlockTable(ids) for ids in tables])


def build(
    batch: InputBatch,
    *rows: tuple[ScheduledRequest, int, int, bool],
    shape: StepShape | None = None,
    num_sampled: int | None = None,
    num_decodes: int = 0,
) -> ModelInputs:
    """The inputs of these rows, in the shape of a captured forward if one is given."""
    plan = StepPlan(0, num_decodes=num_decodes)
    for row in rows:
        plan.add(*row)
    exact = StepShape(plan.num_tokens, len(plan), plan.num_tokens == len(plan), num_sampled)
    batch.stage(plan, shape or exact)
    inputs = batch.inputs(shape) if shape else batch.inputs(exact, plan)
    batch.place(inputs)
    return inputs


def tables(batch: InputBatch, inputs: ModelInputs) -> list[list[list[int]]]:
    return [inputs.rows.tables(table, BLOCK).tolist() for table in batch._tables]


def test_a_mixed_step(batch: InputBatch) -> None:
    decode, chunk = make([5, 6, 7, 8, 9], 2, [3, 4], [7, 8]), make(list(range(20, 31)), 0, [9, 10, 11], [12, 13, 14])
    inputs = build(batch, (decode, 4, 1, True), (chunk, 3, 6, False))
    assert inputs.places.input_ids.tolist() == [9, 23, 24, 25, 26, 27, 28]
    assert inputs.places.positions.tolist() == [4, 3, 4, 5, 6, 7, 8]
    assert inputs.sampled_tokens.tolist() == [0, 0]
    assert batch.sampled_slots.tolist() == [2, 4, 4, 4]
    rows = inputs.rows
    assert (rows.starts, rows.lengths, rows.num_single) == ([0, 1, 7], [5, 9], 1)
    assert rows.cu_seqlens_q.tolist() == [0, 1, 7]
    assert rows.seq_lens.tolist() == [5, 9]
    full, window = (group.slot_mapping.tolist() for group in inputs.metadata.groups)
    assert full == [4 * BLOCK, 9 * BLOCK + 3, *range(10 * BLOCK, 11 * BLOCK), 11 * BLOCK]
    assert window == [8 * BLOCK, 12 * BLOCK + 3, *range(13 * BLOCK, 14 * BLOCK), 14 * BLOCK]
    assert tables(batch, inputs)[0] == [[3, 4, 0], [9, 10, 11]]


def test_padding_rows_compute_one_token_in_the_null_block_where_all_rows_do(batch: InputBatch) -> None:
    inputs = build(batch, (make([5, 6, 7], 3, [3], [7]), 2, 1, True), shape=StepShape(3, 3, only_singles=True))
    assert inputs.places.input_ids.tolist() == [7, 0, 0]
    assert inputs.places.positions.tolist() == [2, 0, 0]
    assert inputs.rows.cu_seqlens_q.tolist() == [0, 1, 2, 3]
    assert inputs.rows.seq_lens.tolist() == [3, 1, 1]
    assert inputs.rows.slots.tolist() == [3, 4, 4]
    assert inputs.metadata.groups[0].slot_mapping.tolist() == [3 * BLOCK + 2, 0, 0]
    assert inputs.rows.num_single == 3
    assert tables(batch, inputs)[0] == [[3, *[0] * 15], [0] * 16, [0] * 16]


def test_padding_computes_nothing_beside_longer_rows(batch: InputBatch) -> None:
    build(batch, (make(list(range(9)), 1, [5, 6, 7], [5, 6, 7]), 0, 9, True))  # leaves numbers that the next step does not overwrite
    inputs = build(batch, (make([5, 6, 7], 3, [3], [7]), 0, 3, True), shape=StepShape(8, 4, only_singles=False))
    assert inputs.places.input_ids.tolist() == [5, 6, 7, 0, 0, 0, 0, 0]
    assert inputs.rows.cu_seqlens_q.tolist() == [0, 3, 3, 3, 3]
    assert inputs.rows.seq_lens.tolist() == [3, 0, 0, 0]
    assert inputs.metadata.groups[1].slot_mapping.tolist() == [28, 29, 30, 0, 0, 0, 0, 0]
    assert inputs.sampled_tokens.tolist() == [2, 0, 0, 0]
    assert batch.sampled_slots.tolist() == [3, 4, 4, 4]
    assert inputs.rows.starts[-1] - inputs.rows.starts[-2] > 1


@pytest.mark.parametrize("on_the_host", [True, False])
def test_sampled_tokens_are_rows_of_one_token_with_all_of_their_rows_length(
    batch: InputBatch, on_the_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[tuple[StepRows, int | None]] = []

    def bind(tables: torch.Tensor, rows: StepRows, window: int | None, *rest: object) -> None:
        bound.append((rows, window))

    monkeypatch.setattr(batch, "_ops", SimpleNamespace(bind_attention=bind, place_tokens=reference.place_tokens))
    decode, unfinished = make([5, 6, 7, 8, 9], 2, [3, 4], [7, 8]), make(list(range(20, 31)), 0, [9, 10, 11], [12, 13, 14])
    prompt = make(list(range(6)), 1, [1, 2], [1, 2])
    captured = None if on_the_host else StepShape(16, 4, only_singles=False, num_sampled=3)
    inputs = build(batch, (decode, 4, 1, True), (unfinished, 3, 6, False), (prompt, 0, 6, True), shape=captured, num_sampled=2)
    sampled = inputs.metadata.sampled
    assert sampled is not None
    assert [group.slot_mapping.numel() for group in sampled.metadata.groups] == [0, 0]
    (rows, _), (_, window) = (binding for binding in bound if binding[0] is not inputs.rows)
    assert window == 6
    padding = 0 if on_the_host else 1
    assert sampled.indices.tolist() == [0, 12] + [0] * padding
    assert rows.seq_lens.tolist() == [5, 6] + [1] * padding
    assert rows.slots is not None
    assert rows.slots.tolist() == [2, 1] + [batch.max_rows] * padding
    assert rows.cu_seqlens_q.tolist() == rows.starts == list(range(3 + padding))
    assert rows.num_single == 2 + padding
    assert rows.lengths == ([5, 6] if on_the_host else [64] * 3)


def test_a_step_that_samples_nothing_has_no_sampled_rows(batch: InputBatch) -> None:
    inputs = build(batch, (make(list(range(20, 31)), 0, [9, 10, 11], [12, 13, 14]), 3, 6, False), num_sampled=0)
    assert inputs.metadata.sampled is not None
    assert len(inputs.metadata.sampled.indices) == 0


def test_ids_that_were_not_collected_come_from_the_device(batch: InputBatch) -> None:
    waiting, known = make([5, 6], 3, [1], [1]), make([7, 8], 1, [2], [2])
    inputs = build(batch, (waiting, 2, 1, True), (known, 1, 1, True))
    assert inputs.places.input_ids.tolist() == [103, 8]
    longer = build(batch, (waiting, 1, 2, True))
    assert longer.places.input_ids.tolist() == [6, 103]


def test_tables_grow_and_are_replaced_with_the_tenant(batch: InputBatch) -> None:
    first = make(list(range(12)), 0, [1], [1])
    assert tables(batch, build(batch, (first, 3, 1, True)))[0] == [[1]]
    first.block_tables[0].block_ids.append(2)
    first.block_tables[1].block_ids.append(5)
    assert tables(batch, build(batch, (first, 4, 1, True))) == [[[1, 2]], [[1, 5]]]
    second = make(list(range(12)), 0, [8, 9], [8, 9])
    assert tables(batch, build(batch, (second, 4, 1, True)))[0] == [[8, 9]]
    second.num_preemptions += 1
    second.block_tables = [BlockTable([6, 7]), BlockTable([6, 7])]
    assert tables(batch, build(batch, (second, 4, 1, True)))[1] == [[6, 7]]


def test_rows_that_decode_go_on_in_their_slots(batch: InputBatch) -> None:
    """Of a row that decodes nothing is read: neither its slot while the rows stay the same, nor the id, which the device has."""
    shape, padded = StepShape(3, 3, only_singles=True), [0]
    one, two = make([5, 6, 7], 2, [3, 4], [7, 8]), make([8, 9], 0, [5, 6], [9, 10])
    build(batch, (one, 2, 1, True), (two, 1, 1, True), shape=shape)
    for step in range(1, 4):
        inputs = build(batch, (one, 2 + step, 1, True), (two, 1 + step, 1, True), shape=shape, num_decodes=2)
        one.token_ids.append(999)
        assert inputs.places.input_ids.tolist() == [102, 100, *padded]
        assert inputs.places.positions.tolist() == [2 + step, 1 + step, *padded]
        assert inputs.rows.seq_lens.tolist() == [3 + step, 2 + step, 1]
        assert inputs.rows.cu_seqlens_q.tolist() == [0, 1, 2, 3]
        assert (batch.sampled_slots.tolist(), inputs.sampled_tokens.tolist()) == ([2, 0, 4, 4], [0, 1, 0])
    alone = build(batch, (two, 5, 1, True), shape=shape, num_decodes=1)
    assert alone.rows.slots.tolist() == [0, 4, 4]
    assert alone.places.input_ids.tolist() == [100, 0, 0]


def test_a_row_that_comes_back_to_another_slot_among_the_same_rows(batch: InputBatch) -> None:
    shape = StepShape(2, 2, only_singles=True)
    stays, leaves = make([5, 6], 2, [3, 4], [7, 8]), make([8, 9], 0, [5], [9])
    build(batch, (stays, 1, 1, True), (leaves, 1, 1, True), shape=shape)
    build(batch, (stays, 2, 1, True), (leaves, 2, 1, True), shape=shape, num_decodes=2)
    leaves.slot, leaves.num_preemptions, leaves.token_ids = 3, 1, [8, 9, 77]
    leaves.block_tables = [BlockTable([6]), BlockTable([10])]
    back = build(batch, (stays, 3, 1, True), (leaves, 2, 1, True), shape=shape, num_decodes=1)
    assert back.places.input_ids.tolist() == [102, 77]
    assert back.places.positions.tolist() == [3, 2]
    assert (back.rows.slots.tolist(), batch.sampled_slots.tolist()) == ([2, 3], [2, 3, 4, 4])
    assert tables(batch, back)[0] == [[3, *[0] * 15], [6, *[0] * 15]]  # the second block is not needed yet
    on = build(batch, (stays, 4, 1, True), (leaves, 3, 1, True), shape=shape, num_decodes=2)
    assert (on.places.input_ids.tolist(), on.places.positions.tolist()) == ([102, 103], [4, 3])
