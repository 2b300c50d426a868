"""Products of float32 rows by bfloat16 matrices on the matrix unit of a CPU (AMX), tiles of 16 by 16 sums at a time.

The unit multiplies bfloat16 only, but sixteen times as many numbers a cycle as float32 instructions do. So a row is split into three
bfloat16 terms that add up to it exactly, and each term is multiplied by the same tile of the matrix. Results are as exact as sums in
float32 are, and those of a row do not depend on the rows beside it. Numbers below 2^-126 count as zero, and what is infinite becomes NaN.

Both sides lie in memory tile after tile, as the unit reads them: rows as `[M / 16, K / 32, term, row, k of 32]`, a matrix as
`[N / 16, K / 32, k of 32 / 2, column of 16, k of 2]`.
"""

import torch
from torch import Tensor

from inference_server.kernels.cpu.code import Array, BFloats, Code, Floats, Int
from inference_server.kernels.cpu.vectors import Words, intrinsic

SIDE = 16  # rows of a tile, and columns of sums
DEPTH = 32  # k of a tile
TERMS = 3
COLUMN_TILES = 4  # multiplied together: as many sums as registers hold beside the terms of a row and a tile of the matrix
COLUMNS = COLUMN_TILES * SIDE
TILE_WORDS = SIDE * DEPTH // 2
_ROW_BYTES = 64
_SUMS, _TERMS, _PART = range(COLUMN_TILES), range(COLUMN_TILES, COLUMN_TILES + TERMS), COLUMN_TILES + TERMS  # the eight registers


def tile_configs() -> Tensor:
    """What `configure` reads, for each number of rows: the format, the bytes of a register's row and the rows of each register."""
    configs = torch.zeros(SIDE + 1, 64, dtype=torch.uint8)
    configs[:, 0] = 1
    configs[:, 16:32:2] = _ROW_BYTES
    configs[:, 48:56] = torch.arange(SIDE + 1, dtype=torch.uint8)[:, None]
    configs[:, 48 + _PART] = SIDE
    return configs


def configure(code: Code, configs: Words, num_rows: Int | int) -> None:
    """Makes tiles of rows `num_rows` high, for this thread, until `release`."""
    intrinsic(code, "llvm.x86.ldtilecfg", code.ir.VoidType(), (configs + code.integer(num_rows) * 16).ir)


def release(code: Code) -> None:
    intrinsic(code, "llvm.x86.tilerelease", code.ir.VoidType())


def split_rows(code: Code, row: Int, x: Floats, terms: BFloats, k: Int) -> None:
    """Writes the terms of a row of x `[M, k]` to their place in `terms`; k is a multiple of DEPTH."""
    split_row(code, x + row * k, terms, row, k)


def split_row(code: Code, x: Floats, terms: BFloats, row: Int, k: Int | int) -> None:
    """Writes the terms of x `[k]` as row `row` of `terms`."""
    steps = code.integer(k) // DEPTH
    place: BFloats = terms + (row // SIDE * steps * (TERMS * SIDE) + row % SIDE) * DEPTH
    with code.loop(steps) as step:
        source: Floats = x + step * DEPTH
        target: BFloats = place + step * (TERMS * SIDE * DEPTH)
        with code.loop(DEPTH) as i:
            rest = source[i]
            for term in range(TERMS):
                rest = rest - target.put(i + term * (SIDE * DEPTH), rest)


def multiply(
    code: Code, rows: BFloats, matrix: Words, y: Floats, steps: Int | int, stride: Int | int, add: bool = False, prefetch: int = 0
) -> None:
    """y[:, :COLUMNS] = or += rows @ matrix, for a tile of rows and COLUMNS columns over steps * DEPTH of k.

    stride: from one row of y to the next. prefetch: how many bytes ahead of its use the matrix is requested.
    """
    y_stride = code.integer(stride) * 4
    for p in _SUMS:
        if add:
            _load(code, p, y + code.integer(p * SIDE), y_stride)
        else:
            intrinsic(code, "llvm.x86.tilezero", code.ir.VoidType(), *_registers(code, p))
    with code.loop(steps) as step:
        for t, register in enumerate(_TERMS):
            _load(code, register, rows + (step * TERMS + t) * (SIDE * DEPTH))
        for p in _SUMS:
            part: Words = matrix + (step + code.integer(steps) * p) * TILE_WORDS
            if prefetch:
                for line in range(SIDE):
                    part.prefetch(code.integer(line * SIDE), prefetch)
            _load(code, _PART, part)
            for register in _TERMS:
                intrinsic(code, "llvm.x86.tdpbf16ps", code.ir.VoidType(), *_registers(code, p, register, _PART))
    for p in _SUMS:
        operands = *_registers(code, p), (y + code.integer(p * SIDE)).ir, y_stride.ir
        intrinsic(code, "llvm.x86.tilestored64", code.ir.VoidType(), *operands)


def _load(code: Code, register: int, memory: Array, stride: Int | None = None) -> None:
    """stride: in bytes."""
    operands = *_registers(code, register), memory.ir, (stride or code.integer(_ROW_BYTES)).ir
    intrinsic(code, "llvm.x86.tileloadd64", code.ir.VoidType(), *operands)


def _registers(code: Code, *numbers: int) -> list[object]:
    return [code.ir.IntType(8)(number) for number in numbers]
