"""What top-p means, in integers: token weights and the mass a nucleus must reach.

Sums of integers do not depend on their order, and the weights are made of single IEEE operations in a given order, so every way to find
the set (sorting, narrowing, bisection, a kernel) finds the same one on every device.
"""

import torch
from torch import Tensor

WEIGHT_BITS = 42  # sums stay below 2**62 for vocabularies below 2**20
TOP_P_BITS = 31
LOWEST = -64.0  # a value this far below the highest has no weight, nor has any below it
LOG2_E = 1.4426950216293335  # all factors are exact float32
POWER_OF_TWO = (0.0018671307479962707, 0.009017028845846653, 0.05579991266131401, 0.24016444385051727, 0.6931512951850891, 1.0)
"""2**f on [0, 1] as a polynomial, highest power first: relative error 1.6e-7 when evaluated in float32."""

_MANTISSA_BITS = 23


def token_weights(values: Tensor) -> Tensor:
    """Softmax numerators in fixed point: [..., V] float32 logits to int64 in [0, 2**42]."""
    exponents = (values - values.amax(-1, keepdim=True)).clamp_(min=LOWEST).mul_(LOG2_E)
    whole = exponents.floor()
    fractions = exponents.sub_(whole)
    powers = fractions * POWER_OF_TWO[0]
    for factor in POWER_OF_TWO[1:-1]:
        powers.add_(factor).mul_(fractions)
    # The exponent is added to the bits: a product with a power of two, without rounding.
    bits = powers.add_(POWER_OF_TWO[-1]).view(torch.int32).add_(whole.to(torch.int32).bitwise_left_shift_(_MANTISSA_BITS))
    return bits.view(torch.float32).mul_(2.0**WEIGHT_BITS).to(torch.int64)


def fixed_point_top_p(top_p: float) -> int:
    """What `nucleus_mass` takes: top_p in units of 2**-31."""
    return round(top_p * 2**TOP_P_BITS)


def nucleus_mass(total: Tensor, fixed_top_p: Tensor | int) -> Tensor:
    """`total * top_p`, exactly and without overflow, but at least 1: int64 of the shape of `total`."""
    high, low = total >> TOP_P_BITS, total & ((1 << TOP_P_BITS) - 1)
    return (high * fixed_top_p + (low * fixed_top_p >> TOP_P_BITS)).clamp_(min=1)
