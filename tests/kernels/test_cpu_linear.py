"""bfloat16 linear layers: exact up to float32 rounding, the same bits in any batch, and a choice that falls back to torch."""

from functools import cache

import pytest
import torch
from cpu_linear_checks import check_rows_do_not_depend_on_their_batch, check_threads_change_nothing, this_machines

from inference_server.kernels.cpu.linears import CpuLinears
from inference_server.kernels.cpu.ops import CpuOps
from inference_server.kernels.cpu.panel_linear import PackedLinear
from inference_server.kernels.cpu.tile_linear import TileLinear
from inference_server.kernels.cpu.vectors import VectorUnit, vector_unit
from inference_server.kernels.ops import Linear
from inference_server.kernels.reference import StockLinear

AVX512 = {name: True for name in ("avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx2", "fma")}


@cache
def linears(unit: VectorUnit) -> CpuLinears:
    return CpuLinears(unit)


@pytest.fixture(params=[VectorUnit(8, False), VectorUnit(16, False), VectorUnit(16, False, tiles=True)], ids=str)
def unit(request: pytest.FixtureRequest) -> VectorUnit:
    """Every width of vector register that this machine has, and its matrix unit."""
    return this_machines(request.param)


def packed(weight: torch.Tensor, unit: VectorUnit) -> Linear:
    return linears(unit)(weight)


def random_weight(num_features: int, k: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_features, k, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def random_rows(m: int, k: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(m, k, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("num_features", "k"), [(1, 1), (31, 7), (32, 640), (33, 100), (640, 2048), (1536, 640)])
def test_matches_float64(unit: VectorUnit, num_features: int, k: int) -> None:
    weight, x = random_weight(num_features, k), random_rows(64, k)
    linear, exact = packed(weight, unit), x.double() @ weight.double().T
    bound = x.double().abs() @ weight.double().abs().T  # |error| <= k * eps * sum |x||w|, and rounding errors rarely line up
    for m in (*range(1, 15), 25, 64):
        y = linear(x[:m])
        assert y.shape == (m, num_features) and y.dtype == torch.float32
        assert ((y - exact[:m]).abs() <= 4 * k**0.5 * torch.finfo(torch.float32).eps * bound[:m]).all()


def test_a_row_is_the_same_bits_in_every_batch(unit: VectorUnit) -> None:
    check_rows_do_not_depend_on_their_batch(packed(random_weight(96, 640), unit), random_rows(29, 640))


def test_thread_count_does_not_change_the_result(unit: VectorUnit) -> None:
    check_threads_change_nothing(packed(random_weight(2048, 64), unit), random_rows(5, 64))


def test_neighbours_do_not_leak(unit: VectorUnit) -> None:
    linear, x = packed(random_weight(64, 32), unit), random_rows(4, 32)
    poisoned = x.clone()
    poisoned[[0, 2, 3]] = torch.nan
    assert torch.equal(linear(poisoned)[1], linear(x)[1])


def test_dtypes_and_strides(unit: VectorUnit) -> None:
    weight, x = random_weight(48, 40), random_rows(3, 80).to(torch.bfloat16)[:, ::2]
    linear = packed(weight, unit)
    y = linear(x)
    assert y.dtype == torch.bfloat16
    assert linear(x, torch.float32).dtype == torch.float32
    assert torch.equal(y, linear(x.float()).to(torch.bfloat16))


def test_edges(unit: VectorUnit) -> None:
    linear = packed(random_weight(48, 40), unit)
    assert linear(torch.empty(0, 40)).shape == (0, 48)
    with pytest.raises(ValueError, match=r"expected \[M, 40\]"):
        linear(torch.zeros(1, 41))
    with pytest.raises(ValueError, match=r"expected \[M, 40\]"):
        linear(torch.zeros(40))


def test_rows_are_the_weights(unit: VectorUnit) -> None:
    weight = random_weight(77, 24)
    ids = torch.tensor([0, 76, 8, 7, 15, 16, 33, 8])
    assert torch.equal(packed(weight, unit).rows(ids), weight[ids])


def test_only_bfloat16_weights_are_packed(unit: VectorUnit) -> None:
    weight = random_weight(48, 40)
    assert isinstance(packed(weight, unit), TileLinear if unit.tiles else PackedLinear)
    assert isinstance(packed(weight.float(), unit), StockLinear)


def test_stock_is_torch() -> None:
    weight, x, ids = random_weight(48, 40), random_rows(3, 40), torch.tensor([47, 0])
    exact, rounded = StockLinear(weight.float()), StockLinear(weight)
    assert torch.equal(exact(x), torch.nn.functional.linear(x, weight.float()))
    assert torch.equal(rounded.rows(ids), weight[ids])
    assert rounded(x.to(torch.bfloat16)).dtype == torch.bfloat16
    assert rounded(x, torch.float32).dtype == torch.float32


def test_the_widest_unit_of_a_cpu_is_chosen() -> None:
    assert vector_unit(AVX512) == VectorUnit(16, dot=True)
    assert vector_unit({**AVX512, "amx-bf16": True}) == VectorUnit(16, dot=True, tiles=True)
    assert vector_unit({**AVX512, "avx512vnni": False}) == VectorUnit(16, dot=False)
    assert vector_unit({**AVX512, "avx512bw": False}) == VectorUnit(8, dot=False)
    assert vector_unit({"avx2": True, "fma": True, "avxvnni": True}) == VectorUnit(8, dot=True)
    assert vector_unit({"avx2": True}) is None


def test_without_vectors_torch_multiplies() -> None:
    kernels = dict.fromkeys(("rms_norm", "add_rms_norm", "norm_rotate_store", "decode_attention", "gated_gelu_tanh", "gated_silu"))
    assert isinstance(CpuOps(kernels, None).linear(random_weight(48, 40)).product, StockLinear)
