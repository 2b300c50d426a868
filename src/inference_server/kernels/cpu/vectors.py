"""Symbols for code that is tiled by hand: the vector unit of this CPU, and vectors as wide as its registers.

Where LLVM vectorises a loop well by itself, `code` is enough. Nothing here may be reordered: a lane's result is exactly what
the operations say.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference_server.kernels.cpu.code import Array, Code, Float, Floats, Int

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # Linux on x86-64


@dataclass(frozen=True, slots=True)
class VectorUnit:
    """lanes: of 32 bits in a register, 16 with AVX512 and 8 with AVX2. dot: adds four products of bytes to a lane at once (VNNI).

    tiles: there is a matrix unit beside it, for tiles of bfloat16 (AMX).
    """

    lanes: int
    dot: bool
    tiles: bool = False

    @property
    def tile_heights(self) -> tuple[int, ...]:
        """Rows of x in a tile: at most so many that with two vectors of sums each, and operands, they fill the 32 or 16 registers."""
        return (12, 8, 4, 2, 1) if self.lanes == 16 else (6, 4, 2, 1)


def cpu_features() -> Mapping[str, bool]:
    """What LLVM finds on this machine, by its names, less what the system does not let this process use."""
    import llvmlite.binding as llvm

    features: dict[str, bool] = dict(llvm.get_host_cpu_features())
    if features.get("amx-bf16"):  # the registers of tiles are a process's only once it has asked for them
        features["amx-bf16"] = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0
    return features


def vector_unit(has: Mapping[str, bool]) -> VectorUnit | None:
    """The widest there is with those features; None without AVX2 and FMA."""
    if has.get("avx512f") and has.get("avx512bw") and has.get("avx512vl"):
        return VectorUnit(16, bool(has.get("avx512vnni")), bool(has.get("amx-bf16")))
    if has.get("avx2") and has.get("fma"):
        return VectorUnit(8, bool(has.get("avxvnni")))
    return None


def in_tiles(code: Code, rows: Int, heights: tuple[int, ...], tile: Callable[[Int, int], None]) -> None:
    """Emits `tile(first row, height)` for as many tiles of each height as fit in what is left; heights fall to 1."""
    start = code.integer(0)
    for height in heights:
        stop = start + (rows - start) // height * height
        with code.loop(stop, start=start, step=height) as row:
            tile(row, height)
        start = stop


@dataclass(slots=True)
class FloatVector:
    """float32 lanes."""

    code: Code
    ir: Any

    @staticmethod
    def zero(code: Code, lanes: int) -> "FloatVector":
        return FloatVector(code, _vector_type(code, "float", lanes)(None))

    def fma(self, x: "FloatVector", y: "FloatVector") -> "FloatVector":
        """self + x * y, rounded once."""
        return FloatVector(self.code, intrinsic(self.code, f"llvm.fma.v{self.ir.type.count}f32", self.ir.type, x.ir, y.ir, self.ir))

    def __add__(self, other: "FloatVector") -> "FloatVector":
        return FloatVector(self.code, self.code.builder.fadd(self.ir, other.ir))

    def __mul__(self, other: "FloatVector") -> "FloatVector":
        return FloatVector(self.code, self.code.builder.fmul(self.ir, other.ir))

    def maximum(self, other: "FloatVector") -> "FloatVector":
        return FloatVector(self.code, intrinsic(self.code, f"llvm.maxnum.v{self.ir.type.count}f32", self.ir.type, self.ir, other.ir))

    def largest(self) -> Float:
        """The largest of the lanes."""
        name = f"llvm.vector.reduce.fmax.v{self.ir.type.count}f32"
        return Float(self.code, intrinsic(self.code, name, self.code.ir.FloatType(), self.ir))

    def store(self, array: Floats, index: Int | int) -> None:
        _store(self.code, array, index, self.ir)


@dataclass(slots=True)
class IntVector:
    """32-bit lanes: integers, or the bits of other numbers."""

    code: Code
    ir: Any

    def __add__(self, other: "IntVector") -> "IntVector":
        return IntVector(self.code, self.code.builder.add(self.ir, other.ir))

    def __lshift__(self, bits: int) -> "IntVector":
        return IntVector(self.code, self.code.builder.shl(self.ir, self._all(bits)))

    def __rshift__(self, bits: int) -> "IntVector":
        """Zeros come in."""
        return IntVector(self.code, self.code.builder.lshr(self.ir, self._all(bits)))

    def __and__(self, mask: int) -> "IntVector":
        return IntVector(self.code, self.code.builder.and_(self.ir, self._all(mask)))

    def bits_as_float(self) -> FloatVector:
        lanes = self.ir.type.count
        return FloatVector(self.code, self.code.builder.bitcast(self.ir, _vector_type(self.code, "float", lanes)))

    def to_float(self) -> FloatVector:
        lanes = self.ir.type.count
        return FloatVector(self.code, self.code.builder.sitofp(self.ir, _vector_type(self.code, "float", lanes)))

    def add_dot(self, unsigned: "IntVector", signed: "IntVector") -> "IntVector":
        """Each lane plus the products of its four bytes of `unsigned`, 0 to 255, by those of `signed`, -128 to 127. Needs VNNI."""
        function = f"llvm.x86.avx512.vpdpbusd.{32 * self.ir.type.count}"
        return IntVector(self.code, intrinsic(self.code, function, self.ir.type, self.ir, unsigned.ir, signed.ir))

    def pair_dot(self, other: "IntVector") -> "IntVector":
        """The products of each lane's two 16-bit integers, signed, added up."""
        ir, builder = self.code.ir, self.code.builder
        lanes = self.ir.type.count
        halves = ir.VectorType(ir.IntType(16), 2 * lanes)
        function = "llvm.x86.avx2.pmadd.wd" if lanes == 8 else "llvm.x86.avx512.pmaddw.d.512"
        operands = builder.bitcast(self.ir, halves), builder.bitcast(other.ir, halves)
        return IntVector(self.code, intrinsic(self.code, function, self.ir.type, *operands))

    def interleave(self, other: "IntVector") -> list["IntVector"]:
        """Pairs of 16-bit integers, low ones first: two vectors, of the first and of the last lanes of self and other."""
        ir, builder = self.code.ir, self.code.builder
        lanes = self.ir.type.count
        halves = ir.VectorType(ir.IntType(16), 2 * lanes)
        operands = builder.bitcast(self.ir, halves), builder.bitcast(other.ir, halves)
        order = [half * 2 * lanes + i for i in range(2 * lanes) for half in (0, 1)]
        parts = (order[: 2 * lanes], order[2 * lanes :])
        return [IntVector(self.code, builder.bitcast(_shuffle(self.code, *operands, part), self.ir.type)) for part in parts]

    def store(self, array: "Words", index: Int | int) -> None:
        _store(self.code, array, index, self.ir)

    def _all(self, value: int) -> Any:
        return self.ir.type([value] * self.ir.type.count)


@dataclass(slots=True)
class Words(Array):
    """Memory read in words of 32 bits: one for all lanes, or one for each."""

    def _element(self) -> Any:
        return self.code.ir.IntType(32)

    def spread(self, index: Int | int, lanes: int) -> IntVector:
        """One word in every lane."""
        return IntVector(self.code, _spread(self.code, self._load(index), lanes))

    def vector(self, index: Int | int, lanes: int) -> IntVector:
        """As many words as lanes, from `index` on."""
        vector_type = _vector_type(self.code, 32, lanes)
        return IntVector(self.code, self.code.builder.load(self._address(index), typ=vector_type, align=4))

    def prefetch(self, index: Int, bytes_ahead: int) -> None:
        """Requests the cache line that far ahead of a word."""
        ir, i32 = self.code.ir, self.code.ir.IntType(32)
        intrinsic(self.code, "llvm.prefetch.p0", ir.VoidType(), self._address(index + bytes_ahead // 4), i32(0), i32(3), i32(1))


def transposed(rows: Sequence[IntVector]) -> list[IntVector]:
    """Lane i of vector j becomes lane j of vector i; as many vectors as lanes, a power of two."""
    code, lanes, vectors = rows[0].code, range(len(rows)), [row.ir for row in rows]
    distance = 1
    while distance < len(rows):  # swaps one bit of the two numbers at a time
        for i in (i for i in lanes if not i & distance):
            pair = vectors[i], vectors[i + distance]
            vectors[i] = _shuffle(code, *pair, [len(rows) + lane - distance if lane & distance else lane for lane in lanes])
            vectors[i + distance] = _shuffle(code, *pair, [len(rows) + lane if lane & distance else lane + distance for lane in lanes])
        distance *= 2
    return [IntVector(code, vector) for vector in vectors]


def spread(x: Float, lanes: int) -> FloatVector:
    """x in every lane."""
    return FloatVector(x.code, _spread(x.code, x.ir, lanes))


def float_vector(array: Floats, index: Int | int, lanes: int) -> FloatVector:
    """As many numbers as lanes, from `index` on."""
    address = (array + array.code.integer(index)).ir
    return FloatVector(array.code, array.code.builder.load(address, typ=_vector_type(array.code, "float", lanes), align=4))


def intrinsic(code: Code, name: str, result: Any, *operands: Any) -> Any:
    """A call of an LLVM intrinsic."""
    module, function_type = code.builder.module, code.ir.FunctionType(result, [operand.type for operand in operands])
    return code.builder.call(module.globals.get(name) or code.ir.Function(module, function_type, name), operands)


def _store(code: Code, array: Array, index: Int | int, value: Any) -> None:
    code.builder.store(value, (array + code.integer(index)).ir, align=4)


def _spread(code: Code, scalar: Any, lanes: int) -> Any:
    vector_type = code.ir.VectorType(scalar.type, lanes)
    undefined = code.ir.Constant(vector_type, code.ir.Undefined)
    one = code.builder.insert_element(undefined, scalar, code.ir.IntType(32)(0))
    return _shuffle(code, one, undefined, [0] * lanes)


def _shuffle(code: Code, first: Any, second: Any, order: list[int]) -> Any:
    """The lanes `order` of the two vectors, where those of `second` are numbered after those of `first`."""
    return code.builder.shuffle_vector(first, second, code.ir.Constant(_vector_type(code, 32, len(order)), order))


def _vector_type(code: Code, element: str | int, lanes: int) -> Any:
    return code.ir.VectorType(code.ir.FloatType() if element == "float" else code.ir.IntType(int(element)), lanes)
