"""`TritonLinear`: a product with what surrounds it on CUDA, for any number of rows.

It picks the one-row kernel, the few-rows kernel or the library's product, shape by shape as the launch table says. What the library's
product leaves out is launched separately. An int8 weight is multiplied as it is for one row, widened in registers for a few rows, and
widened in memory for the library's product.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from inference_server.kernels.gpu.dequantize import dequantize
from inference_server.kernels.gpu.draw import greedy
from inference_server.kernels.gpu.few_rows import few_rows, highest_of_few_rows, padded_rows
from inference_server.kernels.gpu.fused_norm import add_norm
from inference_server.kernels.gpu.gated import gated, gated_by, softcapped
from inference_server.kernels.gpu.launch import LaunchConfig, tuning
from inference_server.kernels.gpu.one_row import one_row
from inference_server.kernels.ops import AddNorm, Epilogue

MAX_FEW_ROWS = 256  # what our kernels were measured for
MIN_PROGRAMS = 64  # that are to read an int8 weight which was not measured
MAX_WIDENED_ROWS = 64  # of int8 weights that were not measured: above this the library is faster on a wider copy


def operation(rows: int, epilogue: Epilogue, *, norm: bool = False, split: bool = False, int8: bool = False) -> str:
    """The launch table's name for a product of so many rows. norm: with the `AddNorm` before it, which one row may take along."""
    kind = "one row" if rows == 1 else f"{padded_rows(rows)} rows"
    parts = {"int8": int8, kind: True, "norm": norm, "gated": epilogue.gated, "split": split}
    return " ".join(name for name, there in parts.items() if there)


@dataclass(frozen=True, slots=True)
class TritonLinear:
    """A `FusedLinear`. weight: [N, K], or [2 N, K] for a gated epilogue, contiguous; dtype: of activations, which are contiguous too.

    scales: float32 [N or 2 N] of an int8 weight; None for one of dtype.
    """

    weight: Tensor
    epilogue: Epilogue
    dtype: torch.dtype
    scales: Tensor | None = None

    def __call__(self, x: Tensor, factor: Tensor | None = None) -> Tensor:
        config = self._own_tuning(len(x))
        if config is None:
            return self.by_library(x, factor)
        if len(x) == 1:
            return one_row(None, x, None, self.weight, self.epilogue, factor, config, self.scales)[1]
        return few_rows(x, self.weight, self.epilogue, factor, config, self.scales)

    def by_library(self, x: Tensor, factor: Tensor | None = None) -> Tensor:
        """The layer with the library's product, whatever was measured."""
        return library_linear(x, self._wide_weight(), self.epilogue, factor)

    def highest(self, x: Tensor) -> Tensor:
        """For layers without activation. For several rows no [M, N] in float32 is written, whichever product it is."""
        config = self._own_tuning(len(x))
        if config is None:
            return self.highest_by_library(x)
        return greedy(self(x)) if len(x) == 1 else highest_of_few_rows(x, self.weight, self.epilogue, config, self.scales)

    def highest_by_library(self, x: Tensor) -> Tensor:
        """`highest` with the library's product; the soft cap is applied while that is read."""
        return greedy(F.linear(x, self._wide_weight()), self.epilogue.softcap)

    def after(self, stream: Tensor | None, update: Tensor, norm: AddNorm, factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One launch for one row, where that was measured to be faster than two."""
        if update.shape[-2] == 1 and update.ndim == 2:
            config = self._tuning(operation(1, self.epilogue, norm=True, int8=self.scales is not None))
            if config:
                return one_row(stream, update, norm, self.weight, self.epilogue, factor, config, self.scales)
        total, normed = add_norm(stream, update, norm, self.dtype)
        return total, self(normed, factor)

    def rows(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight) if self.scales is None else dequantize(self.weight, self.scales, self.dtype, ids)

    def _wide_weight(self) -> Tensor:
        return self.weight if self.scales is None else dequantize(self.weight, self.scales, self.dtype)

    def _own_tuning(self, rows: int) -> LaunchConfig | None:
        """None for the library's product."""
        int8 = self.scales is not None
        if rows == 1:
            return self._tuning(operation(1, self.epilogue, int8=int8), one_row_default(self.weight.shape[1], self.epilogue.gated, int8))
        if rows > MAX_FEW_ROWS:
            return None
        split = self._tuning(operation(rows, self.epilogue, split=True, int8=int8)) if self.epilogue.partial else None
        n, k = self.weight.shape
        default = few_rows_default(rows, n, k, self.epilogue) if int8 and rows <= MAX_WIDENED_ROWS else None
        return split or self._tuning(operation(rows, self.epilogue, int8=int8), default)

    def _tuning(self, name: str, default: LaunchConfig | None = None) -> LaunchConfig | None:
        """The table holds what was measured with activations of two bytes."""
        n, k = self.weight.shape
        return tuning(name, n, k, self.weight.device, default) if self.dtype.itemsize == 2 else default


def one_row_default(k: int, gated: bool, int8: bool) -> LaunchConfig:
    """For cards and shapes that were not measured: tiles of about 16 kB a program, K in chunks that waste little."""
    wasteless = [block for block in (2048, 1024, 512) if -k % block <= k // 10]
    block_k = wasteless[0] if wasteless else min(1024, triton.next_power_of_2(k))
    elements = 16384 if int8 else 8192
    rows = max(1, min(8, elements // (triton.cdiv(k, block_k) * block_k * (2 if gated else 1))))
    return LaunchConfig(rows=1 << (rows.bit_length() - 1), block_k=block_k, num_warps=8 if k > 8192 else 4)


def few_rows_default(rows: int, n: int, k: int, epilogue: Epilogue) -> LaunchConfig:
    """For an int8 weight [n, k], where the library would have to be given a wider one.

    Up to 32 rows, two warps take 64 weight rows. With four, Triton multiplies by warp groups, for which bytes leave shared memory in
    pairs and take twice the instructions; with fewer weight rows, or more rows of x, each warp widens all weights for itself.
    """
    padded, matrices = padded_rows(rows), 2 if epilogue.gated else 1
    if padded > 32:
        return LaunchConfig(rows=64, block_k=128, num_warps=4 * matrices, num_stages=4)
    height = next((height for height in (64, 32) if n >= height * MIN_PROGRAMS), 16) if not epilogue.partial else 64
    shares = max(1, min(2 * MIN_PROGRAMS * height // n, k // 512)) if epilogue.partial else 1
    return LaunchConfig(rows=height // matrices, block_k=128, num_warps=2, num_stages=4, splits=shares)


def library_linear(x: Tensor, weight: Tensor, epilogue: Epilogue, factor: Tensor | None) -> Tensor:
    """`TritonLinear.by_library` for a weight in the dtype of x. Raises ValueError for an activation without a gate or factor."""
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
