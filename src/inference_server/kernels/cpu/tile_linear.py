"""Linear layers with bfloat16 weights on CPUs with a matrix unit: as `panel_linear` on others, but several times as fast for many rows.

A few rows are bound by the reading of the weights, which lie in memory in the order in which they are read; sixteen cost what one does.
As there, a row's result is the same bits for any batch size, neighbours or thread count.
"""

import torch
from torch import Tensor
from torch.nn import functional

from inference_server.kernels.cpu.code import BFloats, Code, Floats, Int
from inference_server.kernels.cpu.jit import CompiledKernel
from inference_server.kernels.cpu.rows import float_rows, results
from inference_server.kernels.cpu.tiles import (
    COLUMN_TILES,
    COLUMNS,
    DEPTH,
    SIDE,
    TERMS,
    TILE_WORDS,
    configure,
    multiply,
    release,
    tile_configs,
)
from inference_server.kernels.cpu.vectors import Words

PREFETCH_BYTES = 2048  # how far ahead of its use a weight is requested


class TileLinear:
    """A bfloat16 weight in tiles; the only copy."""

    def __init__(self, weight: Tensor, split: CompiledKernel, multiply: CompiledKernel) -> None:
        self._split, self._multiply, self._configs = split, multiply, tile_configs()
        self._num_features, self._k = weight.shape
        padding = (0, -self._k % DEPTH, 0, -self._num_features % COLUMNS)
        padded = functional.pad(weight, padding) if any(padding) else weight
        self._padded_features, self._padded_k = padded.shape
        # [N / 16, column, K / 32, pair of k, 2] -> [N / 16, K / 32, pair of k, column, 2]
        self._tiles = padded.reshape(-1, SIDE, self._padded_k // DEPTH, DEPTH // 2, 2).permute(0, 2, 3, 1, 4).contiguous()

    def __call__(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        x32 = float_rows(x, self._k, self._padded_k)
        rows, n, k = x.shape[0], self._padded_features, self._padded_k
        y = torch.empty(rows, n)
        if rows:
            row_tiles = -(-rows // SIDE)
            terms = torch.empty(row_tiles * SIDE, TERMS * k, dtype=torch.bfloat16)
            self._split(4 * rows * k, rows, x32.data_ptr(), terms.data_ptr(), k)
            addresses = self._tiles.data_ptr(), terms.data_ptr(), y.data_ptr(), self._configs.data_ptr()
            self._multiply(row_tiles * n * k, n // COLUMNS, *addresses, k, rows, n)
        return results(y, self._num_features, out_dtype or x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        return self._tiles[ids // SIDE, :, :, ids % SIDE].flatten(1)[:, : self._k]


def tile_linear(code: Code, block: Int, weight: Words, terms: BFloats, y: Floats, configs: Words, k: Int, m: Int, n: Int) -> None:
    """An item is COLUMNS output features. weight, terms: see `tiles`; y `[m, n]`."""
    matrix: Words = weight + block * (k // DEPTH) * (COLUMN_TILES * TILE_WORDS)
    with code.loop(m, step=SIDE) as row:
        height = code.clamp(m - row, code.integer(1), code.integer(SIDE))
        configure(code, configs, height)
        multiply(code, terms + row * k * TERMS, matrix, y + row * n + block * COLUMNS, k // DEPTH, n, prefetch=PREFETCH_BYTES)
    release(code)
