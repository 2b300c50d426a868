"""The int8 linear layer: exactly the bits of its arithmetic, on every kind of vector unit, in any batch, on any number of threads."""

from functools import cache

import pytest
import torch
from cpu_linear_checks import check_rows_do_not_depend_on_their_batch, check_threads_change_nothing, this_machines
from torch import Tensor
from torch.nn import functional

from inference_server.kernels import reference
from inference_server.kernels.cpu.int8 import GROUP, Int8Linear, int8_kernel, quantize_kernel
from inference_server.kernels.cpu.jit import CompiledKernel, can_compile, compile_kernels
from inference_server.kernels.cpu.linears import CpuLinears
from inference_server.kernels.cpu.vectors import VectorUnit, cpu_features, vector_unit
from inference_server.kernels.quantize import QuantizedWeight, quantize_groups, quantize_weight


@cache
def compiled(unit: VectorUnit) -> tuple[CompiledKernel, CompiledKernel]:
    kernels = compile_kernels([quantize_kernel(unit), int8_kernel(unit)])
    return kernels["quantize_rows"], kernels["int8_linear"]


@pytest.fixture(params=[VectorUnit(8, False), VectorUnit(8, True), VectorUnit(16, False), VectorUnit(16, True)], ids=str)
def unit(request: pytest.FixtureRequest) -> VectorUnit:
    """Every kind of unit whose instructions this machine has."""
    return this_machines(request.param)


def random_weight(num_features: int, k: int, seed: int = 0) -> QuantizedWeight:
    return quantize_weight(torch.randn(num_features, k, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16))


def random_rows(m: int, k: int, seed: int = 1) -> Tensor:
    return torch.randn(m, k, generator=torch.Generator().manual_seed(seed))


def layer(weight: QuantizedWeight, unit: VectorUnit) -> Int8Linear:
    return Int8Linear(weight, *compiled(unit), unit)


def exact(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """The same arithmetic in PyTorch: sums within a group in float64, which holds these integers exactly; over the groups in float32."""
    padding = (0, -x.shape[1] % GROUP)
    x, values = functional.pad(x, padding), functional.pad(weight.values, padding).double()
    quantized, scales = quantize_groups(x, GROUP)
    total = torch.zeros(len(x), len(values))
    for g, part in enumerate(quantized.double().split(GROUP, dim=1)):
        total = total + (part @ values[:, g * GROUP : (g + 1) * GROUP].T).float() * scales[:, g, None]
    return total * weight.scales


@pytest.mark.parametrize(("num_features", "k"), [(1, 1), (31, 7), (64, 64), (65, 100), (640, 2048), (1536, 640)])
def test_is_its_own_arithmetic(unit: VectorUnit, num_features: int, k: int) -> None:
    weight, x = random_weight(num_features, k), random_rows(25, k)
    linear, expected = layer(weight, unit), exact(x, weight)
    for m in (*range(1, 15), 25):
        assert torch.equal(linear(x[:m]), expected[:m])


def test_extreme_values_do_not_overflow(unit: VectorUnit) -> None:
    weight = QuantizedWeight(torch.full((32, 2048), -127, dtype=torch.int8), torch.ones(32), torch.bfloat16)
    weight.values[1::2] = 127
    x = torch.ones(2, 2048) * torch.tensor([[1e30], [-1e-30]])
    x[0, :GROUP] = 0
    assert torch.equal(layer(weight, unit)(x), exact(x, weight))


def test_is_near_the_product_of_unquantised_activations(unit: VectorUnit) -> None:
    weight, x = random_weight(96, 640), random_rows(8, 640)
    expected = reference.product(weight)(x.to(torch.bfloat16), torch.float32)
    assert ((layer(weight, unit)(x) - expected).norm() / expected.norm()) < 0.02


def test_a_row_is_the_same_bits_in_every_batch(unit: VectorUnit) -> None:
    check_rows_do_not_depend_on_their_batch(layer(random_weight(96, 640), unit), random_rows(29, 640))


def test_thread_count_does_not_change_the_result(unit: VectorUnit) -> None:
    check_threads_change_nothing(layer(random_weight(8192, 64), unit), random_rows(5, 64))


def test_rows_are_the_weights(unit: VectorUnit) -> None:
    weight, ids = random_weight(77, 24), torch.tensor([0, 76, 8, 7, 15, 16, 33, 8])
    assert torch.equal(layer(weight, unit).rows(ids), weight.rows(ids))


def test_dtypes_strides_and_edges(unit: VectorUnit) -> None:
    linear, x = layer(random_weight(48, 64), unit), random_rows(3, 128).to(torch.bfloat16)[:, ::2]
    assert linear(x).dtype == torch.bfloat16
    assert torch.equal(linear(x, torch.float32), linear(x.float()))
    assert linear(torch.empty(0, 64)).shape == (0, 48)
    for wrong in (torch.zeros(1, 65), torch.zeros(64)):
        with pytest.raises(ValueError, match=r"expected \[M, 64\]"):
            linear(wrong)


def test_quantised_weights_get_this_layer() -> None:
    widest = vector_unit(cpu_features()) if can_compile() else None
    if widest is None:
        pytest.skip("nothing is compiled on this machine")
    assert isinstance(CpuLinears(widest)(random_weight(48, 64)), Int8Linear)
