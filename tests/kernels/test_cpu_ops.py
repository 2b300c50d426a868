"""The compiled CPU operations against the reference: values, edges of blocks and windows, and the same bits whatever runs beside them."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from inference_server.kernels import reference
from inference_server.kernels.cpu import jit
from inference_server.kernels.cpu.ops import CpuOps, compile_cpu_ops
from inference_server.kernels.cpu.vectors import cpu_features, vector_unit
from inference_server.kernels.ops import Activation, AddNorm, KVSlots
from inference_server.kernels.step_rows import StepRows

BF16 = torch.bfloat16


@pytest.fixture(scope="module")
def ops() -> CpuOps:
    ops = compile_cpu_ops()
    if ops is None:
        pytest.skip("nothing is compiled on this machine")
    return ops


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def step_rows(rows: list[tuple[int, int]]) -> StepRows:
    """Rows of (new tokens, total tokens), those with one new token first."""
    starts, lengths = [0, *itertools.accumulate(n for n, _ in rows)], [total for _, total in rows]
    on_device = torch.tensor(starts, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32)
    return StepRows(starts, lengths, *on_device, num_single=sum(n == 1 for n, _ in rows))


class Cache:
    """Rows of (new tokens, total tokens) in shuffled blocks of a layer; all other slots are NaN."""

    def __init__(self, rows: list[tuple[int, int]], kv_heads: int, head_dim: int, block_size: int, window: int | None = None) -> None:
        needed = [math.ceil(total / block_size) for _, total in rows]
        arena = torch.full((sum(needed) + 3, 3, 2, block_size, kv_heads, head_dim), torch.nan, dtype=BF16)
        self.key, self.value = arena[:, 1, 0], arena[:, 1, 1]
        ids = torch.randperm(sum(needed) + 2, generator=torch.Generator().manual_seed(1)) + 1
        self.tables = torch.zeros(len(rows), max(needed), dtype=torch.int32)
        self.window, self.block_size = window, block_size
        for row, blocks in enumerate(ids[: sum(needed)].split(needed)):
            n, total = rows[row]
            slots = (blocks[:, None] * block_size + torch.arange(block_size)).flatten()[:total]
            oldest = 0 if window is None else max(0, total - n - window + 1)
            kv = random(2, total, kv_heads, head_dim, seed=row)
            reference.write_kv(self.key, self.value, kv[0, oldest:], kv[1, oldest:], slots[oldest:])
            dropped = oldest // block_size
            self.tables[row, dropped : len(blocks)] = blocks[dropped:]
        self.rows = step_rows(rows)

    def attend(self, ops: CpuOps, q: Tensor) -> tuple[Tensor, Tensor]:
        """The attention outputs of the compiled kernel and of the reference."""
        step = (self.tables, self.rows, self.window, self.block_size)
        return ops.bind_attention(*step)(q, self.key, self.value, 0.3), reference.bind_attention(*step)(q, self.key, self.value, 0.3)


@pytest.mark.parametrize("rows, size", [(1, 640), (3, 7), (2, 1), (5, 33), (64, 640)])
def test_rms_norm(ops: CpuOps, rows: int, size: int) -> None:
    x, weight = random(rows, size) * 3, random(size, seed=1)
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("rows, size", [(1, 640), (3, 7), (17, 100)])
@pytest.mark.parametrize("scale", [1.0, 0.7])
@pytest.mark.parametrize("with_next", [True, False])
@pytest.mark.parametrize("with_stream, with_post", [(True, True), (True, False), (False, False)])
def test_add_norm(ops: CpuOps, rows: int, size: int, scale: float, with_next: bool, with_stream: bool, with_post: bool) -> None:
    post, pre = random(size, seed=2) if with_post else None, random(size, seed=3) if with_next else None
    arguments = random(rows, size) if with_stream else None, random(rows, size, seed=1), AddNorm(post, pre, 1e-6, scale)
    for result, expected in zip(ops.add_norm(*arguments), reference.add_norm(*arguments), strict=True):
        torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("rows, size", [(1, 2048), (3, 5), (9, 64)])
def test_gated(ops: CpuOps, activation: Activation, rows: int, size: int) -> None:
    gate_up = random(rows, 2 * size) * 4
    gate_up[0, :4] = torch.tensor([0.0, 200.0, -200.0, 1e-20])
    expected = reference.gated(gate_up.double(), activation)
    torch.testing.assert_close(ops.gated(gate_up, activation).double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("heads, kv_heads, head_dim, block_size", [(4, 1, 256, 16), (6, 2, 32, 4), (3, 3, 10, 1)])
@pytest.mark.parametrize("norm_values", [False, True])
def test_norm_rotate_store(ops: CpuOps, heads: int, kv_heads: int, head_dim: int, block_size: int, norm_values: bool) -> None:
    tokens = 5
    qkv, angles = random(tokens, (heads + 2 * kv_heads) * head_dim) * 2, random(tokens, head_dim // 2)
    weight = random(heads + kv_heads * (2 if norm_values else 1), head_dim, seed=1)
    slot_mapping = torch.randperm(6 * block_size, generator=torch.Generator().manual_seed(0))[:tokens]
    results = []
    for implementation in (ops, reference):
        arena = torch.full((6, 2, 2, block_size, kv_heads, head_dim), torch.nan, dtype=BF16)
        slots = KVSlots(arena[:, 1, 0], arena[:, 1, 1], slot_mapping)
        results.append((implementation.norm_rotate_store(qkv, weight, 1e-6, angles.cos(), angles.sin(), slots), arena))
    torch.testing.assert_close(results[0][0], results[1][0], atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-6, rtol=2**-7, equal_nan=True)  # a rounding may go the other way


def test_without_a_cache_there_are_queries_only(ops: CpuOps) -> None:
    q, weight, angles = random(3, 2 * 16), random(2, 16, seed=1), random(3, 8, seed=2)
    arguments = q, weight, 1e-6, angles.cos(), angles.sin(), None
    torch.testing.assert_close(ops.norm_rotate_store(*arguments), reference.norm_rotate_store(*arguments), atol=2e-6, rtol=1e-5)


def test_stored_values_are_rounded_as_torch_rounds(ops: CpuOps) -> None:
    values = torch.cat((random(1, 61), torch.tensor([[torch.nan, torch.inf, -torch.inf]])), dim=1)
    slots = KVSlots(*torch.zeros(2, 1, 1, 1, 64, dtype=BF16), torch.zeros(1, dtype=torch.int64))
    qkv = torch.cat((random(1, 128), values), dim=1)
    ops.norm_rotate_store(qkv, torch.ones(2, 64), 1e-6, torch.ones(1, 32), torch.zeros(1, 32), slots)
    torch.testing.assert_close(slots.value.flatten(), values.to(BF16)[0], atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("heads, kv_heads, head_dim", [(1, 1, 8), (4, 1, 256), (6, 2, 20), (3, 3, 64)])
@pytest.mark.parametrize("window", [None, 5, 16])
@pytest.mark.parametrize("block_size", [4, 16])
def test_attention_of_mixed_rows(ops: CpuOps, heads: int, kv_heads: int, head_dim: int, window: int | None, block_size: int) -> None:
    rows = [(1, 1), (1, 17), (1, 70), (1, 8), (5, 5), (3, 19), (12, 12)]
    cache = Cache(rows, kv_heads, head_dim, block_size, window)
    result, expected = cache.attend(ops, random(sum(n for n, _ in rows), heads, head_dim, seed=9))
    torch.testing.assert_close(result, expected, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("total", [1, 3, 4, 5, 15, 16, 17, 31, 32, 33, 48])
@pytest.mark.parametrize("window", [None, 1, 3, 15, 16, 17])
def test_attention_at_the_edges_of_blocks_and_windows(ops: CpuOps, total: int, window: int | None) -> None:
    for n in {1, min(2, total), total}:
        result, expected = Cache([(n, total)], 1, 16, 4, window).attend(ops, random(n, 2, 16, seed=total))
        torch.testing.assert_close(result, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("heads, kv_heads, head_dim", [(4, 1, 256), (6, 2, 64)])
@pytest.mark.parametrize("window", [None, 70])
def test_attention_of_chunks_far_into_a_prompt(ops: CpuOps, heads: int, kv_heads: int, head_dim: int, window: int | None) -> None:
    rows = [(1, 200), (40, 300), (7, 130), (150, 150), (2, 65)]
    result, expected = Cache(rows, kv_heads, head_dim, 16, window).attend(ops, random(200, heads, head_dim, seed=9) / head_dim**0.25)
    torch.testing.assert_close(result, expected, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 70])
def test_a_prompts_attention_is_the_same_bits_however_it_is_cut(ops: CpuOps, window: int | None) -> None:
    cache, q = Cache([(300, 300)], 1, 64, 16), random(300, 4, 64) / 3
    if not vector_unit(cpu_features()).tiles:
        pytest.skip("torch multiplies chunks on this machine")

    def attended(first: int, stop: int) -> Tensor:
        rows = step_rows([(stop - first, stop)])
        return ops.bind_attention(cache.tables, rows, window, cache.block_size)(q[first:stop], cache.key, cache.value, 0.3)

    whole = attended(0, 300)
    for cuts in ([0, 3, 67, 130, 300], [0, 64, 65 + 2, 299 - 2, 300]):
        assert torch.equal(torch.cat([attended(*cut) for cut in itertools.pairwise(cuts)]), whole)


def test_large_scores_do_not_overflow(ops: CpuOps) -> None:
    result, expected = Cache([(1, 40), (7, 25)], 1, 32, 4).attend(ops, random(8, 4, 32) * 300)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)


def test_block_mass_is_the_references_and_costs_the_output_nothing(ops: CpuOps) -> None:
    cache, q = Cache([(1, 40), (1, 3), (5, 21)], 2, 16, 4), random(7, 4, 16)
    step, masses = (cache.tables, cache.rows, None, cache.block_size), [torch.zeros(len(cache.key)) for _ in range(2)]
    binds = ops.bind_attention, reference.bind_attention
    outputs = [bind(*step, mass)(q, cache.key, cache.value, 0.3) for bind, mass in zip(binds, masses, strict=True)]
    assert outputs[0].equal(cache.attend(ops, q)[0]) and outputs[1].equal(cache.attend(ops, q)[1])
    assert masses[0].equal(masses[1]) and masses[0].sum().item() == pytest.approx(2 * 4)


def test_decode_attention_is_the_same_bits_in_every_batch_and_thread_count(ops: CpuOps, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [40, 3, 30, 21]
    cache, q = Cache([(1, length) for length in lengths], 1, 64, 4, window=20), random(4, 4, 64)
    together, _ = cache.attend(ops, q)
    for row in range(4):
        one = slice(row, row + 1)
        alone = ops.bind_attention(cache.tables[one], step_rows([(1, lengths[row])]), cache.window, cache.block_size)
        assert torch.equal(alone(q[one], cache.key, cache.value, 0.3), together[one])
    threads = torch.get_num_threads()
    monkeypatch.setattr(jit, "GRAIN", 1)
    try:
        for count in (1, 2, 16):
            torch.set_num_threads(count)
            assert torch.equal(cache.attend(ops, q)[0], together)
    finally:
        torch.set_num_threads(threads)


def test_rows_do_not_depend_on_their_batch(ops: CpuOps) -> None:
    x, weight = random(9, 640), random(640, seed=1)
    norm = AddNorm(weight, weight, 1e-6)
    alone = [ops.add_norm(row[None], row[None], norm)[1] for row in x]
    assert torch.equal(ops.add_norm(x, x.clone(), norm)[1], torch.cat(alone))
    assert torch.equal(ops.gated(x, Activation.GELU_TANH), torch.cat([ops.gated(row[None], Activation.GELU_TANH) for row in x]))


def test_what_the_kernels_cannot_read_is_refused(ops: CpuOps) -> None:
    weight = torch.ones(4)
    with pytest.raises(TypeError, match="contiguous float32"):
        ops.rms_norm(torch.ones(4, 8)[:, ::2], weight, 1e-6)
    with pytest.raises(TypeError, match="contiguous float32"):
        ops.rms_norm(torch.ones(1, 4, dtype=BF16), weight, 1e-6)
