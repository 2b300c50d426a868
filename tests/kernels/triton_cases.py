"""Where the Triton kernels are tested: on the GPU if there is one, else in Triton's interpreter (see conftest.py).

The interpreter multiplies bfloat16 matrices wrongly, and truncates where a GPU rounds. So in it bfloat16 is tested loosely, and not
through matrix products.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from inference_server.kernels import reference
from inference_server.kernels.ops import PLAIN, AddNorm, Epilogue

triton = pytest.importorskip("triton", reason="Triton is not installed")
tl = pytest.importorskip("triton.language")
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def weights(n: int, k: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(n, k, device=DEVICE) * k**-0.5).to(dtype)


def norm_weight(size: int) -> Tensor:
    return torch.rand(size, device=DEVICE) + 0.5


def exact_linear(x: Tensor, weight: Tensor, epilogue: Epilogue = PLAIN, factor: Tensor | None = None) -> Tensor:
    """The reference's result in float32, rounded once."""
    layer = reference.linear(weight.float(), epilogue)
    return layer(x.float(), None if factor is None else factor.float()).to(epilogue.out_dtype or x.dtype)


def exact_after(stream: Tensor | None, update: Tensor, norm: AddNorm, weight: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    total, normed = reference.add_norm(stream, update, norm)
    return total, exact_linear(normed, weight, *args)


def assert_near(got: Tensor, expected: Tensor) -> None:
    """Compare by the norm of the difference, which allows an fp32 sum in another order, or one or two roundings of bfloat16. NaN fails."""
    assert got.shape == expected.shape and got.dtype == expected.dtype
    error = ((got.double() - expected.double()).norm() / expected.double().norm()).item()
    assert error <= (1e-5 if got.dtype is torch.float32 else 1e-2 if ON_GPU else 3e-2)
