"""Linear layers with bfloat16 weights on CPUs, on any vector unit from AVX2 on; with a matrix unit beside it see `tile_linear`.

torch's bfloat16 matmul widens the weights again for every row on plain AVX2, so eight rows cost eight times one, and with AVX512-BF16
or AMX it still stops at half the memory bandwidth for a few rows. Here each weight is stored once, as panels, and multiplied by one small
kernel. It reads every weight from memory once a call, widens it in registers, accumulates in float32 and runs on torch's own OpenMP
threads: a register-tiled GEMM after Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008.

A panel is two vectors of output features for all of K; its word (k, lane) holds feature `lane` in the low and feature `lanes + lane` in
the high half, so one load feeds two vectors with a shift and a mask. Lanes are outputs and k runs in order, hence no reduction: a row's
result is the same bits for any batch size, neighbours or thread count. `StockLinear`, used elsewhere, promises no such thing.
"""

import torch
from torch import Tensor
from torch.nn import functional

from inference_server.kernels.cpu.code import Code, Floats, Int
from inference_server.kernels.cpu.jit import CompiledKernel, KernelSource, trace
from inference_server.kernels.cpu.rows import float_rows, results
from inference_server.kernels.cpu.vectors import FloatVector, VectorUnit, Words, in_tiles, spread

BLOCK_PANELS = 2  # panels handed to a thread at a time
PREFETCH_BYTES = 4096  # how far ahead of its use a weight is requested


class PackedLinear:
    """A bfloat16 weight in panels. Holds the only copy that is needed: `rows` reads the panels too."""

    def __init__(self, weight: Tensor, kernel: CompiledKernel, unit: VectorUnit) -> None:
        self._kernel = kernel
        self._lanes = unit.lanes
        self._num_features, self._k = weight.shape
        padded = functional.pad(weight, (0, 0, 0, -self._num_features % (2 * BLOCK_PANELS * unit.lanes)))
        # [P, half, lane, K] -> [P, K, lane, half]
        self._panels = padded.reshape(-1, 2, unit.lanes, self._k).permute(0, 3, 2, 1).contiguous()

    def __call__(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        x32 = float_rows(x, self._k, self._k)
        num_panels = self._panels.shape[0]
        y = torch.empty(x.shape[0], num_panels * 2 * self._lanes)
        if rows := x.shape[0]:
            addresses = self._panels.data_ptr(), x32.data_ptr(), y.data_ptr()
            self._kernel(y.numel() * self._k, num_panels // BLOCK_PANELS, *addresses, self._k, rows, y.shape[1])
        return results(y, self._num_features, out_dtype or x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        features = 2 * self._lanes
        return self._panels[ids // features, :, ids % self._lanes, ids % features // self._lanes]


def panel_kernel(unit: VectorUnit) -> KernelSource:
    """The kernel that multiplies by panels. An item is a block of BLOCK_PANELS panels."""

    def panel_linear(code: Code, block: Int, panels: Words, x: Floats, y: Floats, k: Int, m: Int, n: Int) -> None:
        """panels: bfloat16 `[P, K, lanes, 2]`; x `[M, K]`; y `[M, n]` with n = 2 * lanes * P."""
        first: Words = panels + block * k * (BLOCK_PANELS * unit.lanes)
        target: Floats = y + block * (BLOCK_PANELS * 2 * unit.lanes)

        def tile(row: Int, rows: int) -> None:
            _tile(code, unit, first, x + row * k, target + row * n, k, n, rows)

        in_tiles(code, m, unit.tile_heights, tile)

    return trace(panel_linear)


def _tile(code: Code, unit: VectorUnit, panels: Words, x: Floats, y: Floats, k: Int, n: Int, rows: int) -> None:
    """The product of `rows` rows of x by one block. One row or two take its panels together, to have enough independent sums in flight."""
    lanes, together = unit.lanes, BLOCK_PANELS if rows <= 2 else 1
    for first in range(0, BLOCK_PANELS, together):
        sums = [[code.variable(FloatVector.zero(code, lanes)) for _ in range(2 * together)] for _ in range(rows)]
        with code.loop(k) as i:
            weights = []
            for p in range(first, first + together):
                panel: Words = panels + k * (p * lanes)
                panel.prefetch(i * lanes, PREFETCH_BYTES)
                pair = panel.vector(i * lanes, lanes)
                weights += [(pair << 16).bits_as_float(), (pair & 0xFFFF0000).bits_as_float()]
            for r in range(rows):
                factor = spread(x[k * r + i], lanes)
                for sum_, weight in zip(sums[r], weights, strict=True):
                    sum_.value = sum_.value.fma(weight, factor)
        for r in range(rows):
            for v, sum_ in enumerate(sums[r]):
                sum_.value.store(y, n * r + (2 * first + v) * lanes)
