"""Symmetric int8: weights with a scale for each output feature, activations with a scale for each group of a token's features.

Rounding is to nearest even, and zero stays zero. Nothing is calibrated: scales come from the values themselves, so a checkpoint
is quantised while it is loaded, one layer at a time.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

LEVELS = 127
_ROWS_AT_ONCE = 8192  # bounds the float32 copy that quantising takes


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A matrix `[N, K]` as `values` * `scales`: int8 [N, K] and float32 [N]. dtype: of the matrix that was quantised."""

    values: Tensor
    scales: Tensor
    dtype: torch.dtype

    def rows(self, ids: Tensor) -> Tensor:
        """The rows `[T, K]` of `ids` `[T]`, float32."""
        return self.values[ids] * self.scales[ids, None]


def quantize_weight(weight: Tensor) -> QuantizedWeight:
    """Quantises `weight` `[N, K]` by rows, on its device."""
    values = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
    for first in range(0, weight.shape[0], _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        values[part], scales[part] = _quantize_rows(weight[part].float())
    return QuantizedWeight(values, scales, weight.dtype)


def quantize_groups(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """x `[M, K]` float32, K a multiple of group, to int8 [M, K] and scales [M, K / group]."""
    values, scales = _quantize_rows(x.reshape(-1, group))
    return values.reshape(x.shape), scales.reshape(x.shape[0], -1)


def _quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    largest = x.abs().amax(1)
    levels = torch.full_like(largest, LEVELS)  # torch divides a number by a tensor through a rounded reciprocal
    factors = torch.where(largest > 0, levels / largest, 0.0)
    return (x * factors[:, None]).round().to(torch.int8), largest / levels
