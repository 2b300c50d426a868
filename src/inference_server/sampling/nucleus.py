"""What top-p means, in integers: token weights and the mass a nucleus must reach.

Sums of integers do not depend on their order, so every way to find the set (sorting, narrowing, bisection) finds the same one.
"""

import torch
from torch import Tensor

_WEIGHT_BITS = 42  # sums stay below 2**62 for vocabularies below 2**20
_TOP_P_BITS = 31


def token_weights(values: Tensor) -> Tensor:
    """Softmax numerators in fixed point: [..., V] float32 logits to int64 in [0, 2**42]."""
    return (values - values.amax(-1, keepdim=True)).exp_().mul_(2.0**_WEIGHT_BITS).to(torch.int64)


def fixed_point_top_p(top_p: float) -> int:
    return round(top_p * 2**_TOP_P_BITS)


def nucleus_mass(total: Tensor, fixed_top_p: Tensor | int) -> Tensor:
    """`total * top_p`, exactly and without overflow, but at least 1: int64 of the shape of `total`."""
    high, low = total >> _TOP_P_BITS, total & ((1 << _TOP_P_BITS) - 1)
    return (high * fixed_top_p + (low * fixed_top_p >> _TOP_P_BITS)).clamp_(min=1)
