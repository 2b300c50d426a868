"""The attention mass of blocks by Triton against the reference: small shapes in the interpreter, the models' own shapes on a GPU."""

import pytest
import torch
from attention_case import Case
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed: its kernels exist on Linux only")

from inference_server.kernels import reference
from inference_server.kernels.gpu.attention import TritonAttention
from inference_server.kernels.gpu.attention_mass import TritonMassAttention
from inference_server.kernels.step_rows import StepRows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def masses(case: Case, num_single: int, slots: Tensor | None = None, num_padding: int = 0) -> tuple[Tensor, Tensor]:
    """The masses of two calls, by Triton and by the reference. num_padding: rows without tokens after the others; only the device knows."""
    counts, lengths = case.cu_seqlens_q, case.seq_lens
    starts, totals = counts.tolist(), lengths.tolist()
    exact = StepRows(starts, totals, counts, lengths, num_single, slots)
    if num_padding:
        counts = torch.cat((counts, counts[-1:].repeat(num_padding)))
        lengths = torch.cat((lengths, lengths.new_zeros(num_padding)))
        starts, totals, num_single = [*starts, *[starts[-1]] * num_padding], [max(totals) + 99] * len(lengths), len(lengths)
        slots = torch.arange(len(lengths), dtype=torch.int32, device=DEVICE).clamp(max=len(case.block_tables) - 1)
    padded = StepRows(starts, totals, counts, lengths, num_single, slots)
    ours, expected = (torch.zeros(len(case.key), device=DEVICE) for _ in range(2))
    attention = TritonMassAttention(TritonAttention(case.block_tables, padded, None), ours)
    wanted = reference.bind_attention(case.block_tables, exact, None, case.key.shape[1], expected)
    for _ in range(2):
        attention(case.q, case.key, case.value, case.scale)
        wanted(case.q, case.key, case.value, case.scale)
    return ours, expected


@pytest.mark.parametrize("block_size", [4, 16, 64])
@pytest.mark.parametrize("heads, kv_heads", [(8, 1), (6, 2)])
def test_mass_of_rows_of_one_token(block_size: int, heads: int, kv_heads: int) -> None:
    case = Case(
        [(1, 1), (1, 17), (1, 70), (1, 128), (5, 5), (3, 39)], heads, kv_heads, None, head_dim=16, block_size=block_size, device=DEVICE
    )
    ours, expected = masses(case, 4)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    assert ours.sum().item() == pytest.approx(2 * 4 * heads)


def test_rows_of_other_slots_and_padding_of_a_captured_launch() -> None:
    case = Case([(1, 33), (1, 7), (1, 90)], 4, 1, None, head_dim=16, block_size=16, device=DEVICE)
    ours, expected = masses(case, 3, num_padding=4)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    case.block_tables = case.block_tables.flip(0)
    ours, expected = masses(case, 3, torch.arange(3, dtype=torch.int32, device=DEVICE).flip(0))
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("heads, kv_heads, head_dim", [(8, 1, 512), (8, 2, 512), (32, 4, 128), (4, 1, 256)])
def test_mass_at_model_shapes(heads: int, kv_heads: int, head_dim: int) -> None:
    for rows in ([(1, 8191)], [(1, 1 + i * 37 % 2000) for i in range(256)]):
        case = Case(rows, heads, kv_heads, None, head_dim=head_dim, block_size=16, dtype=torch.bfloat16, device="cuda")
        ours, expected = masses(case, len(rows))
        torch.testing.assert_close(ours, expected, atol=1e-3, rtol=2e-2)
