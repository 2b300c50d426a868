"""The Triton attention kernels against the reference: small shapes in the interpreter, the models' own shapes on a GPU."""

import pytest
import torch
from attention_case import Case
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed: its kernels exist on Linux only")

from inference_server.kernels.gpu.attention import TritonAttention
from inference_server.kernels.gpu.attention_tuning import DecodeLaunch, PrefillLaunch
from inference_server.kernels.gpu.decode_attention import decode_attention
from inference_server.kernels.gpu.prefill_attention import prefill_attention
from inference_server.kernels.step_rows import StepRows

SPLIT = DecodeLaunch(block_n=16, num_warps=4, num_stages=1, programs=64, min_keys=16, long_keys=64)
SMALL_TILES = PrefillLaunch(block_m=16, block_n=16, num_warps=4, num_stages=1, value_dim=16)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MIXED = [(1, 1), (1, 17), (1, 70), (5, 5), (3, 39), (22, 22)]


def run(case: Case, decode: DecodeLaunch | None = None, prefill: PrefillLaunch | None = None) -> Tensor:
    """Run both kernels over all rows. Each leaves the other's rows alone."""
    out = torch.full_like(case.q, float("nan"))
    step = (case.q, case.key, case.value, out, case.block_tables, case.cu_seqlens_q, case.seq_lens)
    longest = max(total for _, total in case.rows) + 100
    decode_attention(*step, num_rows=len(case.rows), max_seq_len=longest, scale=case.scale, window=case.window, launch=decode)
    prefill_attention(*step, scale=case.scale, window=case.window, launch=prefill)
    return out


def check(case: Case, out: Tensor) -> None:
    if case.q.dtype is torch.float32:
        torch.testing.assert_close(out, case.reference(), atol=2e-5, rtol=1e-4)
    else:
        torch.testing.assert_close(out, case.reference(), atol=4e-2, rtol=2e-2)


@pytest.mark.parametrize("heads, kv_heads", [(8, 1), (6, 2)])
@pytest.mark.parametrize("window", [None, 9])
def test_mixed_rows(heads: int, kv_heads: int, window: int | None) -> None:
    case = Case(MIXED, heads, kv_heads, window, head_dim=16, device=DEVICE)
    check(case, run(case, SPLIT, SMALL_TILES))


@pytest.mark.parametrize("total", [1, 15, 16, 17, 33])
@pytest.mark.parametrize("window", [None, 1, 16, 17])
def test_block_tile_and_window_edges(total: int, window: int | None) -> None:
    rows = [(1, total), *((n, total) for n in {min(2, total), total - 1, total} if n > 1)]
    case = Case(rows, 2, 1, window, head_dim=16, block_size=16, device=DEVICE, seed=total)
    check(case, run(case, SPLIT, SMALL_TILES))


def test_a_narrow_cache_and_default_launches() -> None:
    case = Case(MIXED, 8, 2, 20, head_dim=32, block_size=16, dtype=torch.float16, device=DEVICE)  # the interpreter cannot do bf16
    check(case, run(case))


def test_a_step_launches_what_its_rows_need() -> None:
    for rows, num_single in ((MIXED, 3), (MIXED[:3], 3), (MIXED[3:], 0)):
        case = Case(rows, 4, 1, None, head_dim=16, device=DEVICE)
        lengths = [total for _, total in rows]
        slots = torch.arange(len(rows), dtype=torch.int32, device=DEVICE).flip(0)
        step = StepRows(case.cu_seqlens_q.tolist(), lengths, case.cu_seqlens_q, case.seq_lens, num_single, slots)
        attention = TritonAttention(case.block_tables.flip(0), step, None)
        check(case, attention(case.q, case.key, case.value, case.scale))


def test_a_fixed_grid_serves_padding_rows_and_longer_bounds() -> None:
    """What a captured launch needs: a grid for more rows and tokens than there are, and lengths that only the device knows."""
    case = Case([(1, 33), (7, 20), (1, 5)], 4, 1, None, head_dim=16, device=DEVICE)
    wanted, tokens = case.reference(), len(case.q)
    case.q = torch.cat((case.q, case.q[:5]))
    case.rows += [(0, 0)] * 3
    case.cu_seqlens_q = torch.cat((case.cu_seqlens_q, case.cu_seqlens_q[-1:].repeat(3)))
    case.seq_lens = torch.cat((case.seq_lens, case.seq_lens.new_zeros(3)))
    case.block_tables = torch.cat((case.block_tables, case.block_tables.new_zeros(3, case.block_tables.shape[1])))
    out = run(case, SPLIT, SMALL_TILES)
    torch.testing.assert_close(out[:tokens], wanted, atol=2e-5, rtol=1e-4)
    assert out[tokens:].isnan().all()


MODEL_SHAPES = {
    "e2b-window": (8, 1, 256, 512),
    "e2b-full": (8, 1, 512, None),
    "e4b-window": (8, 2, 256, 512),
    "e4b-full": (8, 2, 512, None),
    "qwen3-30b-a3b": (32, 4, 128, None),
    "gemma3-270m-window": (4, 1, 256, 512),
    "gemma3-270m-full": (4, 1, 256, None),
    "head-dim-64": (4, 2, 64, None),
}
EDGES = [1, 2, 15, 16, 17, 31, 33, 127, 511, 512, 513, 527, 529, 1023, 1025, 2047, 4096, 8191, 8192]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", MODEL_SHAPES)
def test_model_shapes(name: str, dtype: torch.dtype) -> None:
    heads, kv_heads, head_dim, window = MODEL_SHAPES[name]
    batches = [[(1, total)] for total in EDGES]
    batches += [[(1, EDGES[(i * 7) % len(EDGES)] if i % 16 == 0 else 1 + i * 5 % 700) for i in range(rows)] for rows in (8, 32, 256)]
    batches += [[(n, n)] for n in (2, 15, 16, 17, 63, 65, 128, 513, 1023, 2049)] + [[(n, 8190)] for n in (2, 17, 512)]
    batches += [[(1, 700), (1, 16), (1, 8192), (300, 300), (64, 1100), (2, 513), (17, 17)]]
    for seed, rows in enumerate(batches):
        case = Case(rows, heads, kv_heads, window, head_dim=head_dim, block_size=16, dtype=dtype, device="cuda", seed=seed)
        out, wanted = run(case), case.reference()
        difference = (out.float() - wanted.float()).norm() / wanted.float().norm()
        assert difference < (1e-2 if dtype is torch.bfloat16 else 2e-5), (rows, float(difference))
