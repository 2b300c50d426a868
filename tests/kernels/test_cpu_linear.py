"""The packed bfloat16 linear layer: exact to float32 rounding, the same bits for any batch, and a choice that falls back to torch."""

import pytest
import torch

from inference_server.kernels import cpu_linear
from inference_server.kernels.cpu_jit import CompiledKernel, can_compile, compile_kernels
from inference_server.kernels.cpu_linear import PackedLinear, pack_linear, panel_kernel
from inference_server.kernels.reference import StockLinear


@pytest.fixture(scope="module")
def kernel() -> CompiledKernel:
    source = panel_kernel() if can_compile() else None
    if source is None:
        pytest.skip("torch's own matmul is used on this machine")
    return compile_kernels([source])["panel_linear"]


def random_weight(num_features: int, k: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_features, k, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def random_rows(m: int, k: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(m, k, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("num_features", "k"), [(1, 1), (31, 7), (32, 640), (33, 100), (640, 2048), (1536, 640)])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 6, 7, 8, 13, 64])
def test_matches_float64(kernel: CompiledKernel, num_features: int, k: int, m: int) -> None:
    weight, x = random_weight(num_features, k), random_rows(m, k)
    y = pack_linear(weight, kernel)(x)
    exact = x.double() @ weight.double().T
    bound = x.double().abs() @ weight.double().abs().T  # |error| <= k * eps * sum |x||w|, and rounding errors rarely line up
    assert y.shape == (m, num_features) and y.dtype == torch.float32
    assert ((y - exact).abs() <= 4 * k**0.5 * torch.finfo(torch.float32).eps * bound).all()


def test_a_row_is_the_same_bits_in_every_batch(kernel: CompiledKernel) -> None:
    linear, x = pack_linear(random_weight(96, 640), kernel), random_rows(29, 640)
    alone = torch.cat([linear(row[None]) for row in x])
    for m in range(1, 30):
        assert torch.equal(linear(x[:m]), alone[:m])
        assert torch.equal(linear(x[29 - m :]), alone[29 - m :])


def test_thread_count_does_not_change_the_result(kernel: CompiledKernel) -> None:
    linear, x = pack_linear(random_weight(2048, 64), kernel), random_rows(5, 64)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(linear(x))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_neighbours_do_not_leak(kernel: CompiledKernel) -> None:
    linear, x = pack_linear(random_weight(64, 32), kernel), random_rows(4, 32)
    poisoned = x.clone()
    poisoned[[0, 2, 3]] = torch.nan
    assert torch.equal(linear(poisoned)[1], linear(x)[1])


def test_dtypes_and_strides(kernel: CompiledKernel) -> None:
    weight, x = random_weight(48, 40), random_rows(3, 80).to(torch.bfloat16)[:, ::2]
    linear = pack_linear(weight, kernel)
    y = linear(x)
    assert y.dtype == torch.bfloat16
    assert linear(x, torch.float32).dtype == torch.float32
    assert torch.equal(y, linear(x.float()).to(torch.bfloat16))


def test_edges(kernel: CompiledKernel) -> None:
    linear = pack_linear(random_weight(48, 40), kernel)
    assert linear(torch.empty(0, 40)).shape == (0, 48)
    with pytest.raises(ValueError, match=r"expected \[M, 40\]"):
        linear(torch.zeros(1, 41))
    with pytest.raises(ValueError, match=r"expected \[M, 40\]"):
        linear(torch.zeros(40))


def test_rows_are_the_weights(kernel: CompiledKernel) -> None:
    weight = random_weight(77, 24)
    ids = torch.tensor([0, 76, 8, 7, 15, 16, 33, 8])
    assert torch.equal(pack_linear(weight, kernel).rows(ids), weight[ids])


def test_only_bfloat16_weights_are_packed(kernel: CompiledKernel) -> None:
    weight = random_weight(48, 40)
    assert isinstance(pack_linear(weight, kernel), PackedLinear)
    assert isinstance(pack_linear(weight.float(), kernel), StockLinear)


def test_stock_is_torch() -> None:
    weight, x, ids = random_weight(48, 40), random_rows(3, 40), torch.tensor([47, 0])
    exact, rounded = pack_linear(weight.float(), None), pack_linear(weight, None)
    assert torch.equal(exact(x), torch.nn.functional.linear(x, weight.float()))
    assert torch.equal(rounded.rows(ids), weight[ids])
    assert rounded(x.to(torch.bfloat16)).dtype == torch.bfloat16
    assert rounded(x, torch.float32).dtype == torch.float32


def test_no_kernel_where_torch_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    if not can_compile():
        pytest.skip("nothing is compiled on this machine")
    monkeypatch.setattr(cpu_linear.torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert panel_kernel() is None
