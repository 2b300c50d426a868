"""The way into and out of a compiled product on a CPU: float32 rows as wide as its weight is, and results as they were asked for."""

import torch
from torch import Tensor
from torch.nn import functional


def float_rows(x: Tensor, k: int, padded_k: int) -> Tensor:
    """x [M, k], contiguous in float32, zeros behind it up to padded_k. Raises ValueError for another shape."""
    if x.ndim != 2 or x.shape[1] != k:
        raise ValueError(f"expected [M, {k}], got {list(x.shape)}")
    wide = x.float()
    return (functional.pad(wide, (0, padded_k - k)) if padded_k != k else wide).contiguous()


def results(y: Tensor, num_features: int, dtype: torch.dtype) -> Tensor:
    """y [M, padded features] without the padding, in `dtype`."""
    if y.shape[1] != num_features:
        y = y[:, :num_features].contiguous()
    return y if dtype is torch.float32 else y.to(dtype)
