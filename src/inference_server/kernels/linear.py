"""Linear layers with what surrounds them, for any number of rows: picks the one-row kernel, the few-rows kernel or the library's product.

Where a measurement in the launch table says so, shape by shape, a few rows go through our kernel; else the library multiplies, and the
steps that its call leaves out are launched beside it.
"""

import torch.nn.functional as F
from torch import Tensor

from inference_server.kernels.activations import Activation
from inference_server.kernels.fused_norm import AddNorm, add_norm
from inference_server.kernels.gated import gated, gated_by, softcapped
from inference_server.kernels.gemv import Epilogue, few_rows, one_row, padded_rows
from inference_server.kernels.launch import tuning

MAX_FEW_ROWS = 64  # above this the weight is no longer all that counts


def operation(rows: int, epilogue: Epilogue, norm: AddNorm | None = None) -> str:
    """The launch table's name for a product of so many rows."""
    kind = "one row" if rows == 1 else f"{padded_rows(rows)} rows"
    return " ".join([kind, *(["norm"] if norm and rows == 1 else []), *(["gated"] if epilogue.gated else [])])


def fused_linear(x: Tensor, weight: Tensor, epilogue: Epilogue | None = None, factor: Tensor | None = None) -> Tensor:
    """x [M, K] and weight [N, K], or [2 N, K] for a gated epilogue, both contiguous, to [M, N]. factor: [M, N], rows at any stride."""
    epilogue = epilogue or Epilogue()
    m, k = x.shape
    choice = tuning(operation(m, epilogue), weight.shape[0], k, x.device) if m <= MAX_FEW_ROWS else None
    if m == 1:
        return one_row(x, None, None, weight, epilogue, factor, choice)[1]
    if choice:
        return few_rows(x, weight, epilogue, factor, choice)
    return library_linear(x, weight, epilogue, factor)


def split_linear(x: Tensor, weight: Tensor) -> Tensor:
    """`fused_linear` for a result that goes to `norm_linear` or `add_norm` with a residual: may be left in partial sums [splits, M, N]."""
    if 1 < x.shape[0] <= MAX_FEW_ROWS:
        choice = tuning(f"{padded_rows(x.shape[0])} rows split", weight.shape[0], weight.shape[1], x.device)
        if choice:
            return few_rows(x, weight, Epilogue(), None, choice)
    return fused_linear(x, weight)


def norm_linear(
    x: Tensor, residual: Tensor | None, norm: AddNorm, weight: Tensor, epilogue: Epilogue | None = None, factor: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`add_norm`, then `fused_linear` of what it normed: (hidden [M, K], y [M, N]). x may be partial sums, as in `add_norm`.

    One launch for one row, where that was measured to be faster than two.
    """
    epilogue = epilogue or Epilogue()
    if x.shape[0] == 1:
        choice = tuning(operation(1, epilogue, norm), weight.shape[0], x.shape[1], x.device)
        if choice:
            return one_row(x, residual, norm, weight, epilogue, factor, choice)
    hidden, normed = add_norm(x, residual, norm)
    return hidden, fused_linear(normed, weight, epilogue, factor)


def library_linear(x: Tensor, weight: Tensor, epilogue: Epilogue, factor: Tensor | None) -> Tensor:
    """`fused_linear` with the library's product. ValueError for an activation without a gate or factor, which no model here needs."""
    y = F.linear(x, weight)
    if epilogue.gated:
        y = gated(y, epilogue.activation)
    elif factor is not None:
        y = gated_by(y, factor, epilogue.activation)
    elif epilogue.activation is not Activation.NONE:
        raise ValueError(f"{epilogue.activation} needs a gate or a factor")
    if epilogue.softcap:
        return softcapped(y, epilogue.softcap, epilogue.out_dtype or x.dtype)
    return y.to(epilogue.out_dtype or x.dtype)
