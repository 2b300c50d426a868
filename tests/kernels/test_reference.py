"""The reference operations against their definitions, which are written out key by key in float64."""

import pytest
import torch
from attention_case import Case
from torch import Tensor

from inference_server.kernels import reference, reference_attention
from inference_server.kernels.ops import Activation
from inference_server.kernels.reference import moe_experts, paged_attention, rms_norm, rope, route
from inference_server.kernels.step_rows import StepRows

BLOCK = 4
HEAD_DIM = 8


def naive_attention(q: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None) -> Tensor:
    """Causal attention by definition. q [n, Hq, D]: of the last n tokens. keys, values [S, Hkv, D]: of all tokens."""
    n, heads, _ = q.shape
    total, kv_heads = keys.shape[:2]
    out = torch.zeros(q.shape, dtype=torch.float64)
    for i in range(n):
        position = total - n + i
        low = 0 if window is None else max(0, position - window + 1)
        for h in range(heads):
            kv = h * kv_heads // heads
            weights = ((keys[low : position + 1, kv].double() @ q[i, h].double()) * scale).softmax(0)
            out[i, h] = weights @ values[low : position + 1, kv].double()
    return out


def expected(case: Case) -> Tensor:
    parts = case.q.split([n for n, _ in case.rows])
    rows = zip(parts, case.keys, case.values, strict=True)
    return torch.cat([naive_attention(q, k, v, case.scale, case.window) for q, k, v in rows])


@pytest.mark.parametrize("heads, kv_heads", [(1, 1), (4, 1), (4, 2), (6, 2), (3, 3)])
@pytest.mark.parametrize("window", [None, 5, 8])
def test_mixed_rows_equal_the_definition(heads: int, kv_heads: int, window: int | None) -> None:
    case = Case([(1, 1), (1, 17), (1, 8), (5, 5), (3, 19), (12, 12), (1, 30)], heads, kv_heads, window)
    torch.testing.assert_close(case.reference().double(), expected(case), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("total", [1, BLOCK - 1, BLOCK, BLOCK + 1, 7, 8, 9, 11, 12, 13])
@pytest.mark.parametrize("window", [None, 1, 3, 4, 8])
def test_block_and_window_edges(total: int, window: int | None) -> None:
    for n in {1, min(2, total), total}:
        case = Case([(n, total)], 2, 1, window, seed=total)
        torch.testing.assert_close(case.reference().double(), expected(case), atol=2e-6, rtol=1e-5)


def test_long_rows_are_cut_into_query_chunks_and_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_attention, "QUERY_CHUNK", 4)
    monkeypatch.setattr(reference_attention, "PACK_KEYS", 32)
    for window in (None, 6):
        case = Case([(1, 9), (1, 31), (1, 2), (1, 40), (1, 8), (15, 15), (9, 30)], 4, 2, window)
        torch.testing.assert_close(case.reference().double(), expected(case), atol=2e-6, rtol=1e-5)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    rows = [(1, 9), (1, 31), (6, 6), (1, 14)]
    case = Case(rows, 4, 1, None)
    together = case.reference()
    for row, (n, total) in enumerate(rows):
        start = int(case.cu_seqlens_q[row])
        alone = paged_attention(
            case.q[start : start + n],
            case.key,
            case.value,
            case.block_tables[row : row + 1],
            torch.tensor([0, n], dtype=torch.int32),
            torch.tensor([total], dtype=torch.int32),
            case.scale,
            None,
        )
        torch.testing.assert_close(alone, together[start : start + n], atol=1e-6, rtol=0)


@pytest.mark.parametrize("pack_keys", [2048, 32])
def test_block_mass_is_what_single_token_rows_attend_to(monkeypatch: pytest.MonkeyPatch, pack_keys: int) -> None:
    monkeypatch.setattr(reference_attention, "PACK_KEYS", pack_keys)
    case = Case([(1, 9), (1, 31), (1, 1), (1, 12), (6, 14)], 4, 2, None)
    starts, lengths = case.cu_seqlens_q.tolist(), case.seq_lens.tolist()
    rows = StepRows(starts, lengths, case.cu_seqlens_q, case.seq_lens, num_single=4)
    expected = torch.zeros(len(case.key), dtype=torch.float64)
    for row in range(4):
        for head in range(4):
            weights = (case.keys[row][:, head // 2].double() @ case.q[row, head].double() * case.scale).softmax(0)
            for position, weight in enumerate(weights):
                expected[case.block_tables[row, position // BLOCK]] += weight
    mass = torch.zeros(len(case.key))
    attention = reference.bind_attention(case.block_tables, rows, None, BLOCK, mass)
    out = attention(case.q, case.key, case.value, case.scale)
    torch.testing.assert_close(mass.double(), expected, atol=1e-5, rtol=1e-5)
    assert out.equal(case.reference())
    attention(case.q, case.key, case.value, case.scale)
    torch.testing.assert_close(mass.double(), 2 * expected, atol=1e-5, rtol=1e-5)


def test_rms_norm_is_computed_in_fp32_and_rounded_once() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 2, 16, dtype=torch.bfloat16), torch.rand(2, 16) + 0.5
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    assert rms_norm(x, weight, 1e-6).equal(expected.to(torch.bfloat16))


def test_rope_is_a_rotation_of_complex_pairs() -> None:
    torch.manual_seed(0)
    x, angle = torch.randn(7, 3, HEAD_DIM, dtype=torch.float64), torch.randn(7, HEAD_DIM // 2, dtype=torch.float64)
    turned = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angle), angle).unsqueeze(1)
    torch.testing.assert_close(rope(x, angle.cos(), angle.sin()), torch.cat((turned.real, turned.imag), -1))


@pytest.mark.parametrize("normalize", [True, False])
def test_routing_takes_the_largest_probabilities(normalize: bool) -> None:
    scores = torch.tensor([[0.0, 2.0, 1.0], [3.0, -1.0, 0.0]])
    expert_ids, weights = route(scores, 2, normalize)
    assert expert_ids.tolist() == [[1, 2], [0, 2]]
    total = scores[:, [0, 1, 2]].exp().sum(1) if not normalize else scores.gather(1, expert_ids).exp().sum(1)
    torch.testing.assert_close(weights, scores.gather(1, expert_ids).exp() / total[:, None])


def test_experts_equal_the_definition_and_only_chosen_ones_are_read() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 6, generator=generator)
    gate_up, down = torch.randn(5, 8, 6, generator=generator), torch.randn(5, 6, 4, generator=generator)
    gate_up[3], down[3] = torch.nan, torch.nan
    expert_ids = torch.tensor([0, 1, 2, 4])[torch.stack([torch.randperm(4, generator=generator)[:2] for _ in x])]
    weights = torch.rand(7, 2, generator=generator)
    expected = torch.zeros(7, 6, dtype=torch.float64)
    for token, (ids, shares) in enumerate(zip(expert_ids.tolist(), weights.tolist(), strict=True)):
        for expert, share in zip(ids, shares, strict=True):
            gate, up = (gate_up[expert].double() @ x[token].double()).chunk(2)
            expected[token] += share * (down[expert].double() @ (torch.nn.functional.silu(gate) * up))
    out = moe_experts(x, gate_up, down, expert_ids, weights, Activation.SILU)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
