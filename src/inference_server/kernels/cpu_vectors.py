"""Symbols for code that is tiled by hand: the vector unit of this CPU, and vectors as wide as its registers.

Where LLVM vectorises a loop well by itself, `cpu_code` is enough. Nothing here may be reordered: a lane's result is exactly what
the operations say.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inference_server.kernels.cpu_code import Array, Code, Float, Floats, Int


@dataclass(frozen=True, slots=True)
class VectorUnit:
    """lanes: of 32 bits in a register, 16 with AVX512 and 8 with AVX2. dot: adds four products of bytes to a lane at once (VNNI)."""

    lanes: int
    dot: bool

    @property
    def tile_heights(self) -> tuple[int, ...]:
        """Rows of x in a tile: at most so many that with two vectors of sums each, and operands, they fill the 32 or 16 registers."""
        return (12, 8, 4, 2, 1) if self.lanes == 16 else (6, 4, 2, 1)


def cpu_features() -> Mapping[str, bool]:
    """What LLVM finds on this machine, by its names."""
    import llvmlite.binding as llvm

    features: Mapping[str, bool] = llvm.get_host_cpu_features()
    return features


def vector_unit(has: Mapping[str, bool]) -> VectorUnit | None:
    """The widest there is with those features; None without AVX2 and FMA."""
    if has.get("avx512f") and has.get("avx512bw") and has.get("avx512vl"):
        return VectorUnit(16, bool(has.get("avx512vnni")))
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
        return FloatVector(self.code, _call(self.code, f"llvm.fma.v{self.ir.type.count}f32", self.ir.type, x.ir, y.ir, self.ir))

    def __add__(self, other: "FloatVector") -> "FloatVector":
        return FloatVector(self.code, self.code.builder.fadd(self.ir, other.ir))

    def __mul__(self, other: "FloatVector") -> "FloatVector":
        return FloatVector(self.code, self.code.builder.fmul(self.ir, other.ir))

    def store(self, array: Floats, index: Int | int) -> None:
        _store(self.code, array, index, self.ir)


@dataclass(slots=True)
class IntVector:
    """32-bit lanes of integers, or of what they are made to mean."""

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
        """Each lane plus the products of its four bytes of the one, 0 to 255, and of the other, -128 to 127. Needs VNNI."""
        function = f"llvm.x86.avx512.vpdpbusd.{32 * self.ir.type.count}"
        return IntVector(self.code, _call(self.code, function, self.ir.type, self.ir, unsigned.ir, signed.ir))

    def pair_dot(self, other: "IntVector") -> "IntVector":
        """The products of each lane's two 16-bit integers, signed, added up."""
        ir, builder = self.code.ir, self.code.builder
        lanes = self.ir.type.count
        halves = ir.VectorType(ir.IntType(16), 2 * lanes)
        function = "llvm.x86.avx2.pmadd.wd" if lanes == 8 else "llvm.x86.avx512.pmaddw.d.512"
        operands = builder.bitcast(self.ir, halves), builder.bitcast(other.ir, halves)
        return IntVector(self.code, _call(self.code, function, self.ir.type, *operands))

    def _all(self, value: int) -> Any:
        return self.ir.type([value] * self.ir.type.count)


@dataclass(slots=True)
class Words(Array):
    """Memory read in words of 32 bits: one for all lanes, or one for each."""

    def _element(self) -> Any:
        return self.code.ir.IntType(32)

    def spread(self, index: Int | int, lanes: int) -> IntVector:
        return IntVector(self.code, _spread(self.code, self._load(index), lanes))

    def vector(self, index: Int | int, lanes: int) -> IntVector:
        vector_type = _vector_type(self.code, 32, lanes)
        return IntVector(self.code, self.code.builder.load(self._address(index), typ=vector_type, align=4))

    def prefetch(self, index: Int, bytes_ahead: int) -> None:
        """Requests the cache line that far ahead of a word."""
        ir, i32 = self.code.ir, self.code.ir.IntType(32)
        _call(self.code, "llvm.prefetch.p0", ir.VoidType(), self._address(index + bytes_ahead // 4), i32(0), i32(3), i32(1))


def spread(x: Float, lanes: int) -> FloatVector:
    """x in every lane."""
    return FloatVector(x.code, _spread(x.code, x.ir, lanes))


def float_vector(array: Floats, index: Int | int, lanes: int) -> FloatVector:
    address = (array + array.code.integer(index)).ir
    return FloatVector(array.code, array.code.builder.load(address, typ=_vector_type(array.code, "float", lanes), align=4))


def _call(code: Code, name: str, result: Any, *operands: Any) -> Any:
    """Of an LLVM intrinsic."""
    module, function_type = code.builder.module, code.ir.FunctionType(result, [operand.type for operand in operands])
    return code.builder.call(module.globals.get(name) or code.ir.Function(module, function_type, name), operands)


def _store(code: Code, array: Array, index: Int | int, value: Any) -> None:
    code.builder.store(value, (array + code.integer(index)).ir, align=4)


def _spread(code: Code, scalar: Any, lanes: int) -> Any:
    vector_type = code.ir.VectorType(scalar.type, lanes)
    undefined = code.ir.Constant(vector_type, code.ir.Undefined)
    one = code.builder.insert_element(undefined, scalar, code.ir.IntType(32)(0))
    zeros = code.ir.Constant(code.ir.VectorType(code.ir.IntType(32), lanes), [0] * lanes)
    return code.builder.shuffle_vector(one, undefined, zeros)


def _vector_type(code: Code, element: str | int, lanes: int) -> Any:
    return code.ir.VectorType(code.ir.FloatType() if element == "float" else code.ir.IntType(int(element)), lanes)
