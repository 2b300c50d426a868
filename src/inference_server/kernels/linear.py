"""`TritonLinear`: a product with what surrounds it on CUDA, for any number of rows.

It picks the one-row kernel, the few-rows kernel or the library's product, shape by shape as the launch table says. What the library's
call leaves out is launched beside it.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from inference_server.kernels.fused_norm import add_norm
from inference_server.kernels.gated import gated, gated_by, softcapped
from inference_server.kernels.gemv import default_config, few_rows, one_row, padded_rows
from inference_server.kernels.launch import LaunchConfig, tuning
from inference_server.kernels.ops import AddNorm, Epilogue

MAX_FEW_ROWS = 64  # above this the weight is no longer all that counts


def operation(rows: int, epilogue: Epilogue, *, norm: bool = False, split: bool = False) -> str:
    """The launch table's name for a product of so many rows. norm: with the way into it, which one row may take along."""
    kind = "one row" if rows == 1 else f"{padded_rows(rows)} rows"
    return " ".join([kind, *(["norm"] if norm else []), *(["gated"] if epilogue.gated else []), *(["split"] if split else [])])


@dataclass(frozen=True, slots=True)
class TritonLinear:
    """A `FusedLinear`. weight: [N, K], or [2 N, K] for a gated epilogue, contiguous; activations are contiguous and of its dtype."""

    weight: Tensor
    epilogue: Epilogue

    def __call__(self, x: Tensor, factor: Tensor | None = None) -> Tensor:
        rows, k = x.shape
        if rows == 1:
            if config := self._tuning(operation(1, self.epilogue), default_config(k, self.epilogue.gated)):
                return one_row(None, x, None, self.weight, self.epilogue, factor, config)[1]
        elif rows <= MAX_FEW_ROWS and (config := self._few_rows_tuning(rows)):
            return few_rows(x, self.weight, self.epilogue, factor, config)
        return library_linear(x, self.weight, self.epilogue, factor)

    def after(self, stream: Tensor | None, update: Tensor, norm: AddNorm, factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One launch for one row, where that was measured to be faster than two."""
        if update.shape[-2] == 1 and update.ndim == 2 and (config := self._tuning(operation(1, self.epilogue, norm=True))):
            return one_row(stream, update, norm, self.weight, self.epilogue, factor, config)
        total, normed = add_norm(stream, update, norm, self.weight.dtype)
        return total, self(normed, factor)

    def rows(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)

    def _few_rows_tuning(self, rows: int) -> LaunchConfig | None:
        split = self._tuning(operation(rows, self.epilogue, split=True)) if self.epilogue.partial else None
        return split or self._tuning(operation(rows, self.epilogue))

    def _tuning(self, name: str, default: LaunchConfig | None = None) -> LaunchConfig | None:
        """The table holds what was measured with weights of two bytes."""
        n, k = self.weight.shape
        return tuning(name, n, k, self.weight.device, default) if self.weight.element_size() == 2 else default


def library_linear(x: Tensor, weight: Tensor, epilogue: Epilogue, factor: Tensor | None) -> Tensor:
    """`TritonLinear` with the library's product. ValueError for an activation without a gate or factor, which no model here needs."""
    y = F.linear(x, weight)
    if epilogue.gated:
        y = gated(y, epilogue.activation)
    elif factor is not None:
        y = gated_by(y, factor, epilogue.activation)
    elif epilogue.activation is not None:
        raise ValueError(f"{epilogue.activation} needs a gate or a factor")
    if epilogue.softcap is not None:
        return softcapped(y, epilogue.softcap, epilogue.out_dtype or x.dtype)
    return y.to(epilogue.out_dtype or x.dtype)
