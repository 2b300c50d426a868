"""Activation functions of gated MLPs: for kernels to call, and in plain PyTorch for the references."""

from enum import StrEnum

import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor


class Activation(StrEnum):
    NONE = "none"
    GELU_TANH = "gelu_tanh"
    SILU = "silu"


@triton.jit
def activate(x, KIND: tl.constexpr):
    """x in float32. tanh is written as a sigmoid, which has no overflow: gelu_tanh(x) = x * sigmoid(2 u)."""
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


def reference_activate(x: Tensor, kind: Activation) -> Tensor:
    match kind:
        case Activation.GELU_TANH:
            return F.gelu(x, approximate="tanh")
        case Activation.SILU:
            return F.silu(x)
        case Activation.NONE:
            return x
