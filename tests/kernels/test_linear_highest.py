"""The greedy choice made in the last product, without its logits: the highest feature of each row, among equals the one of argmax."""

import pytest
import torch
from triton_cases import exact_linear, randn, weights
from triton_linear_cases import BF16, CONFIG, FP32, IN_TURNS

from inference_server.kernels.gpu.few_rows import few_rows, highest_of_few_rows
from inference_server.kernels.gpu.launch import LaunchConfig
from inference_server.kernels.gpu.linear import TritonLinear
from inference_server.kernels.ops import PLAIN, Epilogue
from inference_server.kernels.quantize import quantize_weight


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("epilogue", [Epilogue(softcap=30.0, out_dtype=FP32), Epilogue(out_dtype=FP32)])
def test_the_highest_feature(rows: int, epilogue: Epilogue, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    if rows == 1:
        tall = LaunchConfig(rows=256, block_k=32, num_warps=4)  # few programs: the interpreter runs one after the other
        monkeypatch.setattr(TritonLinear, "_tuning", lambda *_: tall)
    x, weight = randn(rows, 32), weights(4100, 32)
    weight[4099], weight[7] = weight[4000], weight[4000]  # equal features, which are the highest of all rows or of none
    layer = TritonLinear(weight, epilogue, FP32)
    assert layer.highest(x).equal(exact_linear(x, weight, epilogue).argmax(-1))
    quantized = quantize_weight(weight)
    layer = TritonLinear(quantized.values, epilogue, FP32, quantized.scales)
    assert layer.highest(x).equal(layer(x).argmax(-1))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # numpy, in the interpreter
@pytest.mark.parametrize("config", [CONFIG, IN_TURNS, LaunchConfig(16, 16, 4, 2, tokens=16)])
@pytest.mark.parametrize("rows, n, dtype", [(2, 6, FP32), (16, 33, torch.float16), (37, 100, FP32)])
def test_the_highest_of_a_few_rows_is_that_of_their_product(rows: int, n: int, dtype: torch.dtype, config: LaunchConfig) -> None:
    """On small whole numbers, so that many are equal, within tiles and across them; on capped and rounded ones; and with int8 weights."""
    torch.manual_seed(n)
    x, weight = randn(rows, 48).round(), randn(n, 48).round()
    scales = torch.rand(n, device=x.device).round() + 0.5
    for epilogue in (Epilogue(out_dtype=dtype), Epilogue(softcap=2.0, out_dtype=dtype)):
        for values, scale in ((weight, None), (weight.to(torch.int8), scales)):
            logits = few_rows(x, values, epilogue, None, config, scale)
            assert highest_of_few_rows(x, values, epilogue, config, scale).equal(logits.argmax(-1))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:All-NaN:RuntimeWarning")
def test_rows_without_a_number_choose_from_the_vocabulary_all_the_same() -> None:
    torch.manual_seed(0)
    x, weight = randn(4, 32), randn(40, 32).abs()
    expected = highest_of_few_rows(x, weight, PLAIN, CONFIG)
    x[1], x[2] = torch.nan, -torch.inf
    got = highest_of_few_rows(x, weight, PLAIN, CONFIG).tolist()
    assert 0 <= got[1] < 40 and got[2] == 0
    assert [got[0], got[3]] == expected[[0, 3]].tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [2, 16, 32, 64])
@pytest.mark.parametrize("config", [LaunchConfig(64, 128, 4, 4, programs=264), LaunchConfig(32, 128, 4, 4), LaunchConfig(16, 256, 2, 4)])
def test_the_highest_of_a_real_vocabulary(rows: int, config: LaunchConfig) -> None:
    """With 262,144 features, and with a number that fills no tile; every value occurs several times, in tiles far apart."""
    torch.manual_seed(0)
    x, weight, epilogue = randn(rows, 1536, dtype=BF16), weights(262144, 1536, BF16), Epilogue(softcap=30.0, out_dtype=FP32)
    weight[100_000:200_000] = weight[:100_000]
    quantized = quantize_weight(weight)
    x[1] = torch.nan
    for n in (262144, 262101):
        for values, scales in ((weight[:n], None), (quantized.values[:n], quantized.scales[:n])):
            got = highest_of_few_rows(x, values, epilogue, config, scales)
            assert 0 <= got[1] < n
            got[1] = 0
            assert got.equal(few_rows(x, values, epilogue, None, config, scales).nan_to_num(-torch.inf).argmax(-1))
