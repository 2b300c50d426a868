"""Quantising to int8: the error bound, zeros, the slices of large matrices, and the linear layer that multiplies by the stored values."""

import pytest
import torch

from inference_server.kernels import quantize, reference
from inference_server.kernels.ops import Epilogue
from inference_server.kernels.quantize import quantize_groups, quantize_weight


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_weight_is_off_by_half_a_step_at_most() -> None:
    weight = random(9, 33).to(torch.bfloat16)
    weight[3] = 0
    weight[4] *= 1000
    quantized = quantize_weight(weight)
    error = (quantized.rows(torch.arange(9)) - weight.float()).abs()
    assert (error <= quantized.scales[:, None] * 0.50001).all()
    assert quantized.values.dtype == torch.int8 and quantized.values.abs().amax(1).tolist() == [127, 127, 127, 0, 127, 127, 127, 127, 127]
    assert quantized.dtype == torch.bfloat16


def test_large_matrices_are_quantised_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random(50, 8)
    whole = quantize_weight(weight)
    monkeypatch.setattr(quantize, "_ROWS_AT_ONCE", 7)
    sliced = quantize_weight(weight)
    assert torch.equal(whole.values, sliced.values) and torch.equal(whole.scales, sliced.scales)


def test_each_group_of_activations_has_its_scale() -> None:
    x = random(3, 12)
    x[:, 4:8] *= 100
    values, scales = quantize_groups(x, 4)
    assert values.shape == (3, 12) and scales.shape == (3, 3)
    error = (values.float() * scales.repeat_interleave(4, dim=1) - x).abs()
    assert (error <= scales.repeat_interleave(4, dim=1) * 0.50001).all()


def test_the_reference_multiplies_the_numbers_that_are_stored() -> None:
    weight, x, ids = quantize_weight(random(40, 24)), random(5, 24, seed=1), torch.tensor([39, 0, 7])
    linear = reference.linear(weight)
    exact = weight.rows(torch.arange(40))
    torch.testing.assert_close(linear(x), x @ exact.T)
    assert torch.equal(linear.rows(ids), exact[ids])
    large = torch.full((1, 24), 30.0, dtype=torch.float16)
    halves = quantize_weight(torch.full((1, 24), 0.5, dtype=torch.float16))
    assert reference.linear(halves)(large).item() == 360.0
    assert linear(x.to(torch.bfloat16)).dtype == torch.bfloat16
    assert reference.linear(weight, Epilogue(out_dtype=torch.float32))(x.to(torch.bfloat16)).dtype == torch.float32
