"""Linear layers with int8 weights: few rows by our kernels, one row in fixed point, many rows by the library."""

import pytest
import torch
from triton_cases import DEVICE, ON_GPU, assert_near, exact_after, exact_linear, norm_weight, randn, weights
from triton_linear_cases import BF16, CONFIG, EPILOGUES, FP32, PARTIAL

from inference_server.kernels import reference
from inference_server.kernels.gpu import linear
from inference_server.kernels.gpu import one_row as one_row_module
from inference_server.kernels.gpu.few_rows import few_rows
from inference_server.kernels.gpu.fused_norm import add_norm
from inference_server.kernels.gpu.launch import LaunchConfig
from inference_server.kernels.gpu.linear import TritonLinear
from inference_server.kernels.gpu.one_row import one_row
from inference_server.kernels.ops import PLAIN, AddNorm, Epilogue
from inference_server.kernels.quantize import quantize_weight


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("rows", [1, 3, 17])
def test_an_int8_weight(rows: int, epilogue: Epilogue, monkeypatch: pytest.MonkeyPatch) -> None:
    """By our kernels or, for many rows, by the library on a widened copy. For one row, the kernel includes the norm."""
    torch.manual_seed(0)
    monkeypatch.setattr(linear, "MAX_FEW_ROWS", 16)
    n, k = 24, 48
    quantized = quantize_weight(weights(n * (2 if epilogue.gated else 1), k))
    exact = quantized.values * quantized.scales[:, None]
    x, residual, norm = randn(rows, k), randn(rows, k), AddNorm(norm_weight(k), norm_weight(k), 1e-6)
    layer = TritonLinear(quantized.values, epilogue, FP32, quantized.scales)
    assert_near(layer(x), exact_linear(x, exact, epilogue))
    if rows == 1:
        monkeypatch.setattr(TritonLinear, "_tuning", lambda *_: CONFIG)
    for mine, expected in zip(layer.after(residual, x, norm), exact_after(residual, x, norm, exact, epilogue), strict=True):
        assert_near(mine, expected)
    assert_near(layer.rows(torch.tensor([3, 0], device=x.device)), exact[[3, 0]])


@pytest.mark.parametrize("num_warps", [2, 4])
def test_every_int8_weight_is_widened_exactly(num_warps: int) -> None:
    """Each row of x selects one feature. On a GPU, two and four warps widen in different layouts."""
    dtype = BF16 if ON_GPU else FP32
    x = torch.eye(256, dtype=dtype, device=DEVICE)
    weight = torch.stack([torch.arange(256, device=DEVICE).roll(n) - 128 for n in range(64)]).to(torch.int8)
    y = few_rows(x, weight, PLAIN, None, LaunchConfig(64, 128, num_warps, 3, tokens=16), torch.ones(64, device=DEVICE))
    assert y.equal(weight.T.to(dtype))


def test_an_int8_product_that_was_not_measured_is_shared_out() -> None:
    torch.manual_seed(0)
    quantized = quantize_weight(weights(64, 2048))
    x, residual, norm = randn(5, 2048), randn(5, 64), AddNorm(norm_weight(64), norm_weight(64), 1e-6)
    parts = TritonLinear(quantized.values, PARTIAL, FP32, quantized.scales)(x)
    assert parts.shape == (4, 5, 64)
    expected = reference.add_norm(residual, x @ (quantized.values * quantized.scales[:, None]).T, norm)
    for mine, exact in zip(add_norm(residual, parts, norm), expected, strict=True):
        assert_near(mine, exact)


@pytest.mark.parametrize("k", [96, 130])
@pytest.mark.parametrize("outlier", [1.0, 300.0])
def test_int8_weights_meet_one_row_in_fixed_point_finer_than_bfloat16(k: int, outlier: float) -> None:
    """The row's largest number meets weights of zero. A row whose length is not a multiple of a word is multiplied as it is."""
    torch.manual_seed(0)
    x, quantized = randn(1, k, dtype=BF16), quantize_weight(weights(24, k))
    x[0, 5], quantized.values[:, 5] = outlier, 0
    y = one_row(None, x, None, quantized.values, Epilogue(out_dtype=FP32), None, CONFIG, quantized.scales)[1].double()
    exact = x.double() @ (quantized.values.double() * quantized.scales[:, None].double()).T
    assert (y - exact).norm() <= exact.norm() * (1e-4 if outlier == 1.0 else 2**-9)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_no_number_stays_visible_in_fixed_point(bad: float) -> None:
    x, quantized = randn(1, 96, dtype=BF16), quantize_weight(weights(24, 96))
    x[0, 40] = bad
    y = one_row(None, x, None, quantized.values, PLAIN, None, CONFIG, quantized.scales)[1]
    assert not y.isfinite().any()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 16, 32, 64, 100])
@pytest.mark.parametrize("n, k", [(2560, 1536), (256, 1536), (1536, 256), (1536, 12288)])
@pytest.mark.parametrize("epilogue", [PLAIN, EPILOGUES[1]])
def test_real_shapes_in_int8(rows: int, n: int, k: int, epilogue: Epilogue) -> None:
    torch.manual_seed(0)
    quantized = quantize_weight(weights(n * (2 if epilogue.gated else 1), k, BF16))
    x, exact = randn(rows, k, dtype=BF16), quantized.values * quantized.scales[:, None]
    layer = TritonLinear(quantized.values, epilogue, BF16, quantized.scales)
    assert_near(layer(x), exact_linear(x, exact, epilogue))
    residual, norm = randn(rows, k, dtype=BF16), AddNorm(norm_weight(k), norm_weight(k), 1e-6, 0.9)
    for mine, expected in zip(layer.after(residual, x, norm), exact_after(residual, x, norm, exact, epilogue), strict=True):
        assert_near(mine, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("k", [1536, 12288])
def test_products_of_bytes_are_those_of_shifts(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    quantized, x = quantize_weight(weights(512, k)), randn(1, k, dtype=BF16)
    layer = TritonLinear(quantized.values, PLAIN, BF16, quantized.scales)
    by_instruction = layer(x)
    monkeypatch.setattr(one_row_module, "multiplies_bytes", lambda _: False)
    assert layer(x).equal(by_instruction)
