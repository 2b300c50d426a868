"""Small-batch linear layers against the plain reference, and how their kernels are chosen."""

import pytest
import torch
from triton_cases import assert_near, exact_after, exact_linear, norm_weight, randn, weights
from triton_linear_cases import BF16, CONFIG, EPILOGUES, FP32, IN_TURNS, PARTIAL

from inference_server.kernels import reference
from inference_server.kernels.gpu import linear
from inference_server.kernels.gpu.few_rows import few_rows
from inference_server.kernels.gpu.fused_norm import add_norm
from inference_server.kernels.gpu.launch import LaunchConfig
from inference_server.kernels.gpu.linear import TritonLinear, operation
from inference_server.kernels.gpu.one_row import one_row
from inference_server.kernels.ops import PLAIN, Activation, AddNorm, Epilogue
from inference_server.kernels.quantize import quantize_weight

ADD_NORM = [
    (True, True, True, 0.7),
    (True, True, False, 0.7),
    (True, False, True, 1.0),
    (False, False, True, 1.0),
    (False, True, False, 1.0),
]


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("n, k", [(6, 16), (40, 48), (33, 130)])
def test_shapes_that_fill_no_block(rows: int, n: int, k: int, epilogue: Epilogue) -> None:
    torch.manual_seed(n)
    x, weight = randn(rows, k), weights(n * (2 if epilogue.gated else 1), k)
    expected = exact_linear(x, weight, epilogue)
    assert_near(TritonLinear(weight, epilogue, weight.dtype)(x), expected)
    for config in (CONFIG, IN_TURNS):
        assert_near(few_rows(x, weight, epilogue, None, config), expected)


@pytest.mark.parametrize("epilogue", [*EPILOGUES, PARTIAL])
@pytest.mark.parametrize("programs", [0, 2])
def test_tiles_over_both_sides(epilogue: Epilogue, programs: int) -> None:
    torch.manual_seed(0)
    x, weight = randn(37, 48), weights(40 * (2 if epilogue.gated else 1), 48)
    splits = 3 if epilogue.partial else 1
    y = few_rows(x, weight, epilogue, None, LaunchConfig(16, 16, 4, 2, splits, programs, tokens=16))
    assert_near(y.sum(0) if epilogue.partial else y, exact_linear(x, weight, epilogue))


@pytest.mark.parametrize("rows", [1, 5])
def test_a_factor_may_be_a_slice_of_a_wider_tensor(rows: int) -> None:
    torch.manual_seed(0)
    x, weight, epilogue = randn(rows, 32), weights(24, 32), Epilogue(Activation.GELU_TANH)
    factor = randn(rows, 3, 24)[:, 1]
    expected = exact_linear(x, weight, epilogue, factor)
    assert_near(TritonLinear(weight, epilogue, weight.dtype)(x, factor), expected)
    assert_near(few_rows(x, weight, epilogue, factor, CONFIG), expected)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("residual, post, pre, scale", ADD_NORM)
def test_the_norm_before_a_layer(rows: int, residual: bool, post: bool, pre: bool, scale: float) -> None:
    torch.manual_seed(0)
    k, epilogue = 48, EPILOGUES[1]
    x, weight = randn(rows, k), weights(40, k)
    before = randn(rows, k) if residual else None
    norm = AddNorm(norm_weight(k) if post else None, norm_weight(k) if pre else None, 1e-6, scale)
    results = [TritonLinear(weight, epilogue, weight.dtype).after(before, x, norm)]
    if rows == 1:
        results.append(one_row(before, x, norm, weight, epilogue, None, CONFIG))
    for got in results:
        for mine, expected in zip(got, exact_after(before, x, norm, weight, epilogue), strict=True):
            assert_near(mine, expected)


@pytest.mark.parametrize(
    "config, int8",
    [
        (LaunchConfig(1, 64, 1), False),
        (LaunchConfig(4, 16, 2), False),
        (LaunchConfig(16, 32, 4), False),
        (LaunchConfig(2, 32, 1, programs=5), False),
        (LaunchConfig(16, 64, 4), True),
        (LaunchConfig(8, 16, 2, programs=2), True),
    ],
)
def test_one_row_in_bfloat16_whatever_the_block_sizes(config: LaunchConfig, int8: bool) -> None:
    torch.manual_seed(0)
    k, epilogue = 96, Epilogue(Activation.GELU_TANH, gated=True)
    x, residual, weight = randn(1, k, dtype=BF16), randn(1, k, dtype=BF16), weights(36, k, BF16)
    norm = AddNorm(norm_weight(k), norm_weight(k), 1e-6, 0.9)
    if int8:
        quantized = quantize_weight(weight)
        got = one_row(residual, x, norm, quantized.values, epilogue, None, config, quantized.scales)
        weight = quantized.values * quantized.scales[:, None]
    else:
        got = one_row(residual, x, norm, weight, epilogue, None, config)
    for mine, expected in zip(got, exact_after(residual, x, norm, weight, epilogue), strict=True):
        assert_near(mine, expected)


@pytest.mark.parametrize("rows", [1, 3])
def test_float16(rows: int) -> None:
    torch.manual_seed(0)
    x, weight = randn(rows, 48, dtype=torch.float16), weights(40, 48, torch.float16)
    layer = TritonLinear(weight, EPILOGUES[3], torch.float16)
    assert (layer(x) - exact_linear(x, weight, EPILOGUES[3])).abs().max() < 1e-3
    assert_near(few_rows(x, weight, PLAIN, None, CONFIG), exact_linear(x, weight))


def test_a_row_of_few_does_not_depend_on_the_others() -> None:
    torch.manual_seed(0)
    x, weight = randn(7, 64), weights(40, 64)
    together = few_rows(x, weight, PLAIN, None, CONFIG)
    x[1:] = torch.nan
    assert few_rows(x, weight, PLAIN, None, CONFIG)[0].equal(together[0])


def test_operations_are_named_by_rows_norm_and_gate() -> None:
    gated = Epilogue(gated=True)
    assert operation(1, gated, norm=True) == "one row norm gated"
    assert operation(1, PLAIN) == "one row"
    assert operation(5, gated) == "16 rows gated"
    assert operation(17, PARTIAL, split=True) == "32 rows split"
    assert operation(1, gated, norm=True, int8=True) == "int8 one row norm gated"


def test_sums_left_in_parts_are_added_by_the_norm() -> None:
    torch.manual_seed(0)
    x, weight, residual = randn(5, 96), weights(40, 96), randn(5, 40)
    norm = AddNorm(norm_weight(40), norm_weight(40), 1e-6, 0.9)
    parts = few_rows(x, weight, PARTIAL, None, LaunchConfig(16, 16, 4, 2, splits=4))  # the last part is shorter: 96 = 3 * 32
    assert parts.shape == (4, 5, 40) and parts.dtype is FP32
    for mine, expected in zip(add_norm(residual, parts, norm), reference.add_norm(residual, x @ weight.T, norm), strict=True):
        assert_near(mine, expected)


def test_only_a_plain_product_is_left_in_parts() -> None:
    with pytest.raises(ValueError, match="cannot be left in partial sums"):
        few_rows(randn(2, 32), weights(16, 32), EPILOGUES[1], None, LaunchConfig(16, 16, 4, 2, splits=2))


@pytest.mark.parametrize(
    "rows, measured, expected",
    [
        (1, True, "one_row"),
        (1, False, "library_linear"),
        (8, True, "few_rows"),
        (8, False, "library_linear"),
        (256, True, "few_rows"),
        (257, True, "library_linear"),
    ],
)
def test_a_few_rows_take_our_kernel_where_it_was_faster(rows: int, measured: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert way_taken(rows, CONFIG if measured else None, monkeypatch) == expected


def way_taken(rows: int, choice: LaunchConfig | None, monkeypatch: pytest.MonkeyPatch) -> str:
    """The function that `fused_linear` calls when the table says `choice`."""
    taken: list[str] = []
    monkeypatch.setattr(linear, "tuning", lambda *_: choice)
    for way in ("one_row", "few_rows", "library_linear"):
        monkeypatch.setattr(linear, way, lambda *_, way=way: taken.append(way) or (None, None))
    TritonLinear(torch.zeros(24, 32, dtype=BF16), PLAIN, BF16)(torch.zeros(rows, 32))
    return taken[0]


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 8, 16, 32, 64, 200, 256])
@pytest.mark.parametrize("n, k", [(2560, 1536), (1536, 4096), (256, 1536), (1536, 256), (24576, 1536), (1536, 12288), (5376, 2112)])
def test_real_shapes(rows: int, n: int, k: int) -> None:
    torch.manual_seed(0)
    x, weight = randn(rows, k, dtype=BF16), weights(n, k, BF16)
    assert_near(TritonLinear(weight, PLAIN, weight.dtype)(x), exact_linear(x, weight))
    if n % 2 == 0:
        assert_near(TritonLinear(weight, EPILOGUES[1], weight.dtype)(x), exact_linear(x, weight, EPILOGUES[1]))
    residual, norm = randn(rows, k, dtype=BF16), AddNorm(norm_weight(k), norm_weight(k), 1e-6, 0.9)
    for mine, expected in zip(
        TritonLinear(weight, PLAIN, weight.dtype).after(residual, x, norm), exact_after(residual, x, norm, weight), strict=True
    ):
        assert_near(mine, expected)
    after, stream = AddNorm(norm_weight(n), None, 1e-6), randn(rows, n, dtype=BF16)
    expected_sum = reference.add_norm(stream, exact_linear(x, weight), after)[0]
    assert_near(add_norm(stream, TritonLinear(weight, PARTIAL, weight.dtype)(x), after)[0], expected_sum)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8, 32, 64, 256])
def test_an_output_projection(rows: int) -> None:
    torch.manual_seed(0)
    x, weight, epilogue = randn(rows, 1536, dtype=BF16), weights(262144, 1536, BF16), Epilogue(softcap=30.0, out_dtype=FP32)
    got, expected = TritonLinear(weight, epilogue, BF16)(x), exact_linear(x, weight, epilogue)
    assert_near(got.to(BF16), expected.to(BF16))  # the library rounds before the cap
    assert TritonLinear(weight, epilogue, BF16).highest(x).equal(got.argmax(-1))
