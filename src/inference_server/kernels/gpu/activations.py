"""Activation functions for Triton kernels to call; `composed.activate` is the same in plain PyTorch."""

import triton
import triton.language as tl


@triton.jit
def activate(x, KIND: tl.constexpr):
    """x in float32; KIND: the name of an `Activation`, or None. tanh is written as a sigmoid, which has no overflow."""
    if KIND == "gelu_tanh":
        return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif KIND == "silu":
        return x * tl.sigmoid(x)
    else:
        return x


@triton.jit
def softcap(x, cap):
    """cap * tanh(x / cap), x in float32."""
    return cap * (2.0 * tl.sigmoid(x * (2.0 / cap)) - 1.0)
