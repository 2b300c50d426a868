"""The allowed sets of all rows, found by bisection on the bits of the logits: for accelerators without Triton.

32 passes over [R, V] whatever the data, and not one wait for the device. Finds the same sets as `reference.py`.
"""

from collections.abc import Sequence
from math import log

import torch
from torch import Tensor

from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling.nucleus import fixed_point_top_p, nucleus_mass, token_weights

_KEY_BITS = 32


def allowed_mask(values: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Which tokens each row's parameters allow: [R, V] bool, at least one a row. values: [R, V] float32, temperature applied."""
    allowed = torch.ones_like(values, dtype=torch.bool)
    keys = _ordered_keys(values)
    vocab_size = values.shape[-1]
    if any(0 < p.top_k < vocab_size for p in params):
        top_k = _column([p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params], torch.int64, values.device)
        allowed = _leading(keys, allowed.to(torch.int64), top_k)
    if any(p.top_p < 1.0 for p in params):
        weights = token_weights(values) * allowed
        fixed_top_p = _column([fixed_point_top_p(p.top_p) for p in params], torch.int64, values.device)
        nucleus = _leading(keys, weights, nucleus_mass(weights.sum(-1, keepdim=True), fixed_top_p))
        allowed &= nucleus | _column([p.top_p >= 1.0 for p in params], torch.bool, values.device)
    if any(p.min_p > 0.0 for p in params):
        floor = _column([log(p.min_p) if p.min_p > 0.0 else -torch.inf for p in params], torch.float32, values.device)
        allowed &= values - values.amax(-1, keepdim=True) >= floor
    return allowed


def _leading(keys: Tensor, weights: Tensor, target: Tensor) -> Tensor:
    """The shortest run of tokens, in order of falling key and then rising id, whose weights reach the row's target.

    keys [R, V] int32, weights [R, V] int64, target [R, 1] int64 of at most the row's sum; returns [R, V] bool.
    """
    low = torch.full_like(target, -(1 << (_KEY_BITS - 1)))
    high = torch.full_like(target, (1 << (_KEY_BITS - 1)) - 1)
    for _ in range(_KEY_BITS):
        middle = (low + high + 1) >> 1
        reached = (weights * (keys >= middle.to(torch.int32))).sum(-1, keepdim=True) >= target
        low = torch.where(reached, middle, low)
        high = torch.where(reached, high, middle - 1)
    threshold = low.to(torch.int32)
    above, tied = keys > threshold, keys == threshold
    tied_weights = weights * tied
    rest = target - (weights * above).sum(-1, keepdim=True)
    return above | (tied & (tied_weights.cumsum(-1) - tied_weights < rest))


def _ordered_keys(values: Tensor) -> Tensor:
    """float32 to int32 of the same order; adding zero makes -0 equal to 0."""
    bits = (values + 0.0).view(torch.int32)
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _column(row_values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(row_values, dtype=dtype, device=device).unsqueeze(1)
