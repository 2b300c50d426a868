"""The symbols that CPU kernels are written on: Python's operators emit LLVM instructions, `Code.loop` emits a loop.

Loops are scalar; LLVM vectorises them for the machine they run on. For that it may reorder sums and fuse products into them; NaN and
infinities mean what they always mean. How a kernel is compiled and called is in `jit`.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

_FLAGS = ("reassoc", "contract", "nsz")
ArrayKind = TypeVar("ArrayKind", bound="Array")


class Code:
    """The kernel being written: its loops, variables, scratch memory and functions."""

    def __init__(self, builder: Any) -> None:
        from llvmlite import ir

        self.ir, self.builder = ir, builder

    @contextmanager
    def loop(self, stop: "Int | int", start: "Int | int" = 0, step: int = 1) -> Iterator["Int"]:
        """The body runs for start, start + step, ... below stop."""
        head, body, end = (self.builder.append_basic_block() for _ in range(3))
        index = self.variable(self.integer(start))
        self.builder.branch(head)
        self.builder.position_at_end(head)
        i = index.value
        self.builder.cbranch((i < stop).ir, body, end)
        self.builder.position_at_end(body)
        yield i
        index.value = i + step
        self.builder.branch(head)
        self.builder.position_at_end(end)

    @contextmanager
    def when(self, condition: "Bool") -> Iterator[None]:
        """What is emitted inside runs only if the condition holds."""
        with self.builder.if_then(condition.ir):
            yield

    def variable(self, value: Any) -> "Variable":
        """A variable that starts at `value` and keeps its kind."""
        variable = Variable(type(value), self, self._alloca(value.ir.type))
        variable.value = value
        return variable

    def memory(self, kind: type[ArrayKind], size: int) -> ArrayKind:
        """Scratch memory of the item, `size` elements."""
        array = kind(self, None)
        allocated = self._alloca(array._element(), size)
        allocated.align = 64
        allocated.type = self.ir.PointerType()  # as arguments are: of no element type, so that vectors can be stored too
        array.ir = allocated
        return array

    def integer(self, value: "Int | int") -> "Int":
        return value if isinstance(value, Int) else Int(self, self.ir.Constant(self.ir.IntType(64), value))

    def number(self, value: "Float | float") -> "Float":
        return value if isinstance(value, Float) else Float(self, self.ir.Constant(self.ir.FloatType(), _to_float32(value)))

    def select(self, condition: "Bool", yes: Any, no: Any) -> Any:
        return type(yes)(self, self.builder.select(condition.ir, yes.ir, no.ir))

    def sqrt(self, x: "Float") -> "Float":
        return self._intrinsic("llvm.sqrt", x)

    def clamp(self, x: "Int", low: "Int", high: "Int") -> "Int":
        x = self.select(x < low, low, x)
        return self.select(high < x, high, x)

    def absolute(self, x: "Float") -> "Float":
        return self._intrinsic("llvm.fabs", x)

    def round(self, x: "Float") -> "Int":
        """To the nearest integer, or the even one of two; |x| below 2^31."""
        i32 = self.builder.fptosi(self._intrinsic("llvm.rint", x).ir, self.ir.IntType(32))
        return Int(self, self.builder.sext(i32, self.ir.IntType(64)))

    def maximum(self, x: "Float", y: "Float | float") -> "Float":
        y = self.number(y)
        return self.select(x > y, x, y)

    def exp(self, x: "Float") -> "Float":
        """To 2 ulp for -87 < x < 88, clamped outside: 2^n * 2^f with |f| <= 1/2, the latter a polynomial (Cody and Waite, 1980)."""
        low, high = self.number(-87.0), self.number(88.0)
        x = self.select(x < low, low, x)
        x = self.select(x > high, high, x)
        n = self._intrinsic("llvm.rint", x * 1.44269504)
        f = self._intrinsic("llvm.fma", n, self.number(2.12194440e-4), self._intrinsic("llvm.fma", n, self.number(-0.693359375), x))
        result = self.number(1.9875691500e-4)
        for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1, 1.0, 1.0):
            result = result * f + coefficient
        i32 = self.ir.IntType(32)
        exponent = self.builder.add(self.builder.fptosi(n.ir, i32), self.ir.Constant(i32, 127))
        power = self.builder.shl(exponent, self.ir.Constant(i32, 23))
        return result * Float(self, self.builder.bitcast(power, self.ir.FloatType()))

    def _alloca(self, element: Any, size: int | None = None) -> Any:
        with self.builder.goto_entry_block():
            return self.builder.alloca(element, size)

    def _intrinsic(self, name: str, *operands: "Float") -> "Float":
        float_type = self.ir.FloatType()
        function_type = self.ir.FunctionType(float_type, [float_type] * len(operands))
        function = self.builder.module.declare_intrinsic(name, [float_type], function_type)
        return Float(self, self.builder.call(function, [x.ir for x in operands]))


@dataclass(slots=True)
class Bool:
    """What a comparison gives: for `when` and `select`."""

    code: Code
    ir: Any


@dataclass(slots=True)
class Int:
    """64 bits. Division is for values that are not negative."""

    llvm_type = "i64"
    code: Code
    ir: Any

    def __add__(self, other: "Int | int") -> "Int":
        return Int(self.code, self.code.builder.add(self.ir, self.code.integer(other).ir))

    def __sub__(self, other: "Int | int") -> "Int":
        return Int(self.code, self.code.builder.sub(self.ir, self.code.integer(other).ir))

    def __mul__(self, other: "Int | int") -> "Int":
        return Int(self.code, self.code.builder.mul(self.ir, self.code.integer(other).ir))

    def __floordiv__(self, other: "Int | int") -> "Int":
        return Int(self.code, self.code.builder.udiv(self.ir, self.code.integer(other).ir))

    def __mod__(self, other: "Int | int") -> "Int":
        return Int(self.code, self.code.builder.urem(self.ir, self.code.integer(other).ir))

    def __lt__(self, other: "Int | int") -> Bool:
        return Bool(self.code, self.code.builder.icmp_signed("<", self.ir, self.code.integer(other).ir))

    def within(self, low: "Int", high: "Int") -> Bool:
        """low <= self <= high."""
        return Bool(self.code, self.code.builder.and_((low < self + 1).ir, (self < high + 1).ir))

    def to_float(self) -> "Float":
        return Float(self.code, self.code.builder.sitofp(self.ir, self.code.ir.FloatType()))


@dataclass(slots=True)
class Float:
    """float32."""

    llvm_type = "float"
    code: Code
    ir: Any

    def __add__(self, other: "Float | float") -> "Float":
        return Float(self.code, self.code.builder.fadd(self.ir, self.code.number(other).ir, flags=_FLAGS))

    def __sub__(self, other: "Float | float") -> "Float":
        return Float(self.code, self.code.builder.fsub(self.ir, self.code.number(other).ir, flags=_FLAGS))

    def __mul__(self, other: "Float | float") -> "Float":
        return Float(self.code, self.code.builder.fmul(self.ir, self.code.number(other).ir, flags=_FLAGS))

    def __truediv__(self, other: "Float | float") -> "Float":
        return Float(self.code, self.code.builder.fdiv(self.ir, self.code.number(other).ir, flags=_FLAGS))

    def __lt__(self, other: "Float | float") -> Bool:
        return Bool(self.code, self.code.builder.fcmp_ordered("<", self.ir, self.code.number(other).ir))

    def __gt__(self, other: "Float | float") -> Bool:
        return Bool(self.code, self.code.builder.fcmp_ordered(">", self.ir, self.code.number(other).ir))


@dataclass(slots=True)
class Variable:
    """A value that a loop changes."""

    kind: type[Any]
    code: Code
    address: Any

    @property
    def value(self) -> Any:
        return self.kind(self.code, self.code.builder.load(self.address))

    @value.setter
    def value(self, value: Any) -> None:
        self.code.builder.store(value.ir, self.address)


@dataclass(slots=True)
class Array:
    """Memory, indexed in elements; `array + n` begins n elements later."""

    llvm_type = "ptr"
    code: Code
    ir: Any

    def __add__(self, offset: Int) -> Any:
        return type(self)(self.code, self._address(offset))

    def exists(self) -> Bool:
        """Whether the argument was not None."""
        null = self.code.ir.Constant(self.ir.type, None)
        return Bool(self.code, self.code.builder.icmp_unsigned("!=", self.ir, null))

    def _element(self) -> Any:
        raise NotImplementedError

    def _address(self, index: Int | int) -> Any:
        return self.code.builder.gep(self.ir, [self.code.integer(index).ir], source_etype=self._element())

    def _load(self, index: Int | int) -> Any:
        return self.code.builder.load(self._address(index), typ=self._element())


@dataclass(slots=True)
class Floats(Array):
    """float32."""

    def _element(self) -> Any:
        return self.code.ir.FloatType()

    def __getitem__(self, index: Int | int) -> Float:
        return Float(self.code, self._load(index))

    def __setitem__(self, index: Int | int, value: Float) -> None:
        self.code.builder.store(value.ir, self._address(index))


@dataclass(slots=True)
class BFloats(Array):
    """bfloat16, widened when read and rounded to nearest even when written."""

    def _element(self) -> Any:
        return self.code.ir.IntType(16)

    def __getitem__(self, index: Int | int) -> Float:
        ir, builder = self.code.ir, self.code.builder
        bits = builder.shl(builder.zext(self._load(index), ir.IntType(32)), ir.IntType(32)(16))
        return Float(self.code, builder.bitcast(bits, ir.FloatType()))

    def __setitem__(self, index: Int | int, value: Float) -> None:
        self.put(index, value)

    def put(self, index: Int | int, value: Float) -> Float:
        """Writes, and returns the value as rounded."""
        ir, builder = self.code.ir, self.code.builder
        i32 = ir.IntType(32)
        bits = builder.bitcast(value.ir, i32)
        odd = builder.and_(builder.lshr(bits, i32(16)), i32(1))
        rounded = builder.add(builder.add(bits, odd), i32(0x7FFF))
        nan = builder.fcmp_unordered("uno", value.ir, value.ir)
        high = builder.lshr(builder.select(nan, i32(0x7FC00000), rounded), i32(16))
        builder.store(builder.trunc(high, ir.IntType(16)), self._address(index))
        return Float(self.code, builder.bitcast(builder.shl(high, i32(16)), ir.FloatType()))


@dataclass(slots=True)
class Ints(Array):
    """int64."""

    def _element(self) -> Any:
        return self.code.ir.IntType(64)

    def __getitem__(self, index: Int | int) -> Int:
        return Int(self.code, self._load(index))

    def __setitem__(self, index: Int | int, value: Int) -> None:
        self.code.builder.store(value.ir, self._address(index))


@dataclass(slots=True)
class Int32s(Array):
    """int32, widened when read and cut when written."""

    def _element(self) -> Any:
        return self.code.ir.IntType(32)

    def __getitem__(self, index: Int | int) -> Int:
        return Int(self.code, self.code.builder.sext(self._load(index), self.code.ir.IntType(64)))

    def __setitem__(self, index: Int | int, value: Int) -> None:
        self.code.builder.store(self.code.builder.trunc(value.ir, self._element()), self._address(index))


def _to_float32(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded
