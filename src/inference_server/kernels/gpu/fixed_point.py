"""A row of activations in 16-bit fixed point, for Triton kernels to multiply by int8 weights as integers: four products an instruction.

Four neighbours share a scale with those at the same place in a program's other chunks of the row, so the largest of some dozen numbers
decides how fine a step is. None is rounded by more than 1 / 65,534 of that largest, where bfloat16 rounds each by up to 1 / 256 of itself
and float16 by 1 / 2,048. A number is two bytes, which are multiplied by the weights separately; the sums of a group are exact.
"""

import torch
import triton
import triton.language as tl

WORD = 4  # int8 weights in an int32
_STEPS = tl.constexpr(32767.0)
_EVEN_BYTES = tl.constexpr(0x00FF00FF)
_TO_INTEGER = tl.constexpr(12582912.0)  # 1.5 * 2 ** 23: added to a float32, it leaves the nearest integer in the low bits


def multiplies_bytes(device: torch.device) -> bool:
    """Whether the card has dp4a, the dot product of four bytes and four bytes."""
    return device.type == "cuda" and torch.version.hip is None


@triton.jit
def fixed_point(values, WORDS: tl.constexpr):
    """values: a tuple of chunks float32 [4 * WORDS]. Returns their bytes, a tuple of int64 [WORDS], and what a step is worth, fp32 [WORDS].

    Each int64 has the high bytes of four neighbours, signed, above their low bytes, unsigned, so that both move between threads at once.
    Where a number is NaN or infinite, its step is too.
    """
    largest = tl.zeros((WORDS,), tl.float32)
    for i in tl.static_range(len(values)):
        a, b, c, d = _fours(tl.abs(values[i]), WORDS)
        largest = _larger(largest, _larger(_larger(a, b), _larger(c, d)))
    factor = _STEPS / tl.maximum(largest, 1e-30)
    digits = ()
    for i in tl.static_range(len(values)):
        a, b, c, d = _fours(values[i], WORDS)
        ac = (_steps(a, factor) & 0xFFFF) | (_steps(c, factor) << 16)
        bd = (_steps(b, factor) & 0xFFFF) | (_steps(d, factor) << 16)
        high = ((ac >> 8) & _EVEN_BYTES) | (bd & ~_EVEN_BYTES)
        low = (ac & _EVEN_BYTES) | ((bd << 8) & ~_EVEN_BYTES)
        digits += ((high.to(tl.int64) << 32) | low.to(tl.uint32, bitcast=True).to(tl.int64),)
    return digits, largest / _STEPS


@triton.jit
def products(weights, values, ROWS: tl.constexpr, WORDS: tl.constexpr, BYTES: tl.constexpr):
    """weights: a tuple of chunks int32 [ROWS, WORDS], four int8 each; values: of `fixed_point`. Returns float32 [ROWS]."""
    digits, step = values
    high = tl.zeros((ROWS, WORDS), tl.int32)
    low = tl.zeros((ROWS, WORDS), tl.int32)
    for i in tl.static_range(len(weights)):
        both = digits[i][None, :]
        high = _add_products(high, weights[i], (both >> 32).to(tl.int32), "s32", BYTES)
        low = _add_products(low, weights[i], both.to(tl.int32), "u32", BYTES)
    return tl.sum((high * 256 + low).to(tl.float32) * step[None, :], 1)


@triton.jit
def _add_products(sums, weights, digits, SIGN: tl.constexpr, BYTES: tl.constexpr):
    """SIGN: of the digits' bytes, as PTX names it."""
    if BYTES:
        asm: tl.constexpr = "dp4a.s32." + SIGN + " $0, $1, $2, $3;"
        sums = tl.inline_asm_elementwise(asm, "=r,r,r,r", [weights, digits, sums], dtype=tl.int32, is_pure=True, pack=1)
    else:
        for byte in tl.static_range(4):
            digit = (digits << (24 - 8 * byte)) >> 24
            if SIGN == "u32":
                digit &= 0xFF
            sums += ((weights << (24 - 8 * byte)) >> 24) * digit
    return sums


@triton.jit
def _steps(value, factor):
    """The nearest integer, in the low 16 bits."""
    return (value * factor + _TO_INTEGER).to(tl.int32, bitcast=True)


@triton.jit
def _fours(chunk, WORDS: tl.constexpr):
    """[4 * WORDS] to four times [WORDS]: the first of every four neighbours, the second and so on."""
    even, odd = tl.split(tl.reshape(chunk, (WORDS, 2, 2)))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return a, b, c, d


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
