"""Linear layers with int8 weights on CPUs: a step reads half the bytes of bfloat16, and with VNNI multiplies more than twice as fast.

Activations are quantised too, on the spot, each group of GROUP features of a token with its own scale: CPUs are fast at products of
bytes, and one scale a token would cost Gemma 3 270M four percent of perplexity. The sum of a group is an exact integer; it is multiplied
by the group's scale in float32, and groups are added in order. So a row's result is the same bits for any batch size, neighbours or
thread count, and on any CPU.

A panel is one vector of output features for all of K; its word (k / 4, lane) holds four weights of feature `lane`, each plus 128, since
the instruction of VNNI multiplies unsigned bytes by signed ones. These 128 add 128 times the sum of a group's activations, so the group's
sum starts from the negative of that. Without VNNI bytes are widened in registers and multiplied in pairs.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from inference_server.kernels.cpu.code import Code, Floats, Int, Int32s
from inference_server.kernels.cpu.jit import CompiledKernel, KernelSource, trace
from inference_server.kernels.cpu.rows import float_rows, results
from inference_server.kernels.cpu.vectors import FloatVector, IntVector, VectorUnit, Words, float_vector, in_tiles, spread
from inference_server.kernels.quantize import LEVELS, QuantizedWeight

GROUP = 64  # features of a token that share a scale
BLOCK_PANELS = 4  # panels handed to a thread at a time
PREFETCH_BYTES = 4096  # how far ahead of its use a weight is requested
_PAIRS = [0, 2, 1, 3]  # bytes of a word without VNNI: the even ones are the first pair of weights, the odd ones the second


class Int8Linear:
    """A quantised weight in panels; the only copy."""

    def __init__(self, weight: QuantizedWeight, quantize: CompiledKernel, multiply: CompiledKernel, unit: VectorUnit) -> None:
        self._quantize, self._multiply, self._unit = quantize, multiply, unit
        self._num_features, self._k = weight.values.shape
        block = BLOCK_PANELS * unit.lanes
        padding = (0, -self._k % GROUP, 0, -self._num_features % block)
        padded = functional.pad(weight.values, padding) if any(padding) else weight.values
        self._padded_features, self._padded_k = padded.shape
        words = padded.view(torch.int32).unflatten(0, (-1, unit.lanes)).transpose(1, 2).contiguous()  # [P, K / 4, lane]
        panels = words.view(torch.uint8).unflatten(2, (-1, 4))
        self._panels = panels.bitwise_xor_(128) if unit.dot else panels[..., _PAIRS].bitwise_xor_(128)
        self._scales = functional.pad(weight.scales, (0, padding[3]))
        self._num_blocks = self._padded_features // block

    def __call__(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        x32 = float_rows(x, self._k, self._padded_k)
        rows, n, k = x.shape[0], self._padded_features, self._padded_k
        y = torch.empty(rows, n)
        if rows:
            values = torch.empty(rows, k, dtype=torch.int8 if self._unit.dot else torch.int16)
            scales, starts = torch.empty(2, rows, k // GROUP).unbind()  # the latter of int32
            quantized = values.data_ptr(), scales.data_ptr(), starts.data_ptr()
            self._quantize(4 * rows * k, rows, x32.data_ptr(), *quantized, k)
            addresses = self._panels.data_ptr(), self._scales.data_ptr(), *quantized, y.data_ptr()
            self._multiply(rows * n * k // 2, self._num_blocks, *addresses, k, rows, n)
        return results(y, self._num_features, out_dtype or x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        lanes = self._unit.lanes
        words = self._panels[ids // lanes, :, ids % lanes]
        values = (words if self._unit.dot else words[..., _PAIRS]).bitwise_xor(128).view(torch.int8)
        return values.flatten(1)[:, : self._k] * self._scales[ids, None]


def quantize_kernel(unit: VectorUnit) -> KernelSource:
    """The kernel that quantises activations. An item is a row."""

    def quantize_rows(code: Code, row: Int, x: Floats, values: Words, scales: Floats, starts: Int32s, k: Int) -> None:
        """x, values `[M, K]`; scales, starts `[M, K / GROUP]`. As `quantize.quantize_groups`; starts: -128 times the group's sum."""
        groups = k // GROUP
        integers = (_Int8s if unit.dot else _Int16s)(code, values.ir)
        with code.loop(groups) as g:
            source: Floats = x + (row * k + g * GROUP)
            target: Int32s = integers + (row * k + g * GROUP)
            largest = code.variable(code.number(0.0))
            with code.loop(GROUP) as i:
                largest.value = code.maximum(code.absolute(source[i]), largest.value)
            factor = code.select(largest.value > 0.0, code.number(LEVELS) / largest.value, code.number(0.0))
            total = code.variable(code.integer(0))
            with code.loop(GROUP) as i:
                value = code.round(source[i] * factor)
                target[i] = value
                total.value = total.value + value
            scales[row * groups + g] = largest.value / LEVELS
            starts[row * groups + g] = total.value * -128

    return trace(quantize_rows)


def int8_kernel(unit: VectorUnit) -> KernelSource:
    """The kernel that multiplies by panels. An item is a block of BLOCK_PANELS panels."""

    def int8_linear(
        code: Code,
        block: Int,
        panels: Words,
        weight_scales: Floats,
        x: Words,
        scales: Floats,
        starts: Words,
        y: Floats,
        k: Int,
        m: Int,
        n: Int,
    ) -> None:
        """panels: `[P, K / 4, lanes, 4]`; x, scales, starts from `quantize_rows`; y `[M, n]` and weight_scales `[n]`, n = lanes * P."""
        tiles = _Tiles(code, unit, panels, weight_scales, x, scales, starts, y, k, n)
        in_tiles(code, m, unit.tile_heights, lambda row, rows: tiles.emit(block, row, rows))

    return trace(int8_linear)


@dataclass(slots=True)
class _Tiles:
    """Emits the product of some rows of x by one block. The fields are those of `int8_linear`; x_words: words of a row of x."""

    code: Code
    unit: VectorUnit
    panels: Words
    weight_scales: Floats
    x: Words
    scales: Floats
    starts: Words
    y: Floats
    k: Int
    n: Int
    x_words: Int = field(init=False)

    def __post_init__(self) -> None:
        self.x_words = self.k // 4 if self.unit.dot else self.k // 2

    def emit(self, block: Int, row: Int, rows: int) -> None:
        """Few rows take several panels together, to have enough independent sums in flight."""
        together = next(count for count in (4, 2, 1) if rows * count <= self.unit.tile_heights[0])
        for first in range(0, BLOCK_PANELS, together):
            self._emit(block * BLOCK_PANELS + first, row, rows, together)

    def _emit(self, panel: Int, row: Int, rows: int, together: int) -> None:
        code, lanes, groups = self.code, self.unit.lanes, self.k // GROUP
        totals = [[code.variable(FloatVector.zero(code, lanes)) for _ in range(together)] for _ in range(rows)]
        with code.loop(groups) as g:
            sums = [[code.variable(self.starts.spread((row + r) * groups + g, lanes)) for _ in range(together)] for r in range(rows)]
            with code.loop((g + 1) * (GROUP // 4), start=g * (GROUP // 4)) as word:
                weights = [self._weights(panel + p, word) for p in range(together)]
                for r in range(rows):
                    factors = self._factors((row + r) * self.x_words, word)
                    for p in range(together):
                        sums[r][p].value = self._add_products(sums[r][p].value, weights[p], factors)
            for r in range(rows):
                scale = spread(self.scales[(row + r) * groups + g], lanes)
                for p in range(together):
                    totals[r][p].value = totals[r][p].value + sums[r][p].value.to_float() * scale
        for p in range(together):
            weight_scale = float_vector(self.weight_scales, (panel + p) * lanes, lanes)
            for r in range(rows):
                (totals[r][p].value * weight_scale).store(self.y, (row + r) * self.n + (panel + p) * lanes)

    def _weights(self, panel: Int, word: Int) -> list[IntVector]:
        """Four weights a lane: as bytes in one vector, or as pairs of 16-bit integers in two."""
        at = (panel * (self.k // 4) + word) * self.unit.lanes
        self.panels.prefetch(at, PREFETCH_BYTES)
        packed = self.panels.vector(at, self.unit.lanes)
        return [packed] if self.unit.dot else [packed & 0x00FF00FF, (packed >> 8) & 0x00FF00FF]

    def _factors(self, start: Int, word: Int) -> list[IntVector]:
        if self.unit.dot:
            return [self.x.spread(start + word, self.unit.lanes)]
        return [self.x.spread(start + word * 2 + i, self.unit.lanes) for i in range(2)]

    def _add_products(self, sums: IntVector, weights: list[IntVector], factors: list[IntVector]) -> IntVector:
        if self.unit.dot:
            return sums.add_dot(weights[0], factors[0])
        for weight, factor in zip(weights, factors, strict=True):
            sums = sums + weight.pair_dot(factor)
        return sums


@dataclass(slots=True)
class _Int16s(Int32s):
    """int16."""

    def _element(self) -> Any:
        return self.code.ir.IntType(16)


@dataclass(slots=True)
class _Int8s(Int32s):
    """int8."""

    def _element(self) -> Any:
        return self.code.ir.IntType(8)
