"""Counter-based random numbers: a pure function of (seed, position, token id), the same bits on every device.

There is no generator state, so a row's draw depends on nothing but the row. The hash is MurmurHash3's 32-bit finaliser (Appleby, 2011)
over a token hash, keyed with 64 bits that SplitMix64 (Steele et al., OOPSLA 2014) makes of seed and position. int32 tensors wrap on
overflow, which is the arithmetic modulo 2**32 that the hash wants, and vectorise where int64 products do not.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_MASK_64 = (1 << 64) - 1
_BELOW_ONE = 1.0 - 2.0**-24  # the largest float32 below 1


def row_keys(seeds: Sequence[int], positions: Sequence[int], device: torch.device) -> Tensor:
    """One 64-bit key a row, as [R, 2] int32: an offset and an odd multiplier. Seeds count modulo 2**64."""
    keys = [_mix_64(_mix_64(seed) + position) for seed, position in zip(seeds, positions, strict=True)]
    return torch.tensor([[_signed_32(key), _signed_32(key >> 32) | 1] for key in keys], dtype=torch.int32, device=device)


def hash_tokens(token_ids: Tensor) -> Tensor:
    """The part of the hash that is the same for every row. token_ids: any integer dtype and shape; returns int32 of that shape."""
    return _mix_32_(token_ids.to(torch.int32, copy=True).add_(0x3C6EF372))


def uniform(keys: Tensor, token_hashes: Tensor) -> Tensor:
    """Uniform numbers in (0, 1), float32. keys [R, 2] int32 and token_hashes [N] int32 give [R, N].

    Small values keep 31 bits of the hash, so that events far rarer than 2**-24 still happen at their rate.
    """
    bits = _mix_32_(torch.bitwise_xor(token_hashes, keys[:, :1]).mul_(keys[:, 1:])).bitwise_and_(0x7FFFFFFF)
    return bits.to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=_BELOW_ONE)


def gumbel(keys: Tensor, token_hashes: Tensor) -> Tensor:
    """Standard Gumbel noise [R, N], float32: the argmax of logits plus this is a draw from their softmax (Gumbel, 1954)."""
    # -log(-log(1 - u)): a large value needs a small u, where a float32 is finest.
    return uniform(keys, token_hashes).neg_().log1p_().neg_().log_().neg_()


def _mix_64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK_64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return value ^ (value >> 31)


def _mix_32_(bits: Tensor) -> Tensor:
    """MurmurHash3's finaliser, in place. The masks make the arithmetic shifts of int32 logical ones."""
    bits.bitwise_xor_((bits >> 16).bitwise_and_(0xFFFF)).mul_(_signed_32(0x85EBCA6B))
    bits.bitwise_xor_((bits >> 13).bitwise_and_(0x7FFFF)).mul_(_signed_32(0xC2B2AE35))
    return bits.bitwise_xor_((bits >> 16).bitwise_and_(0xFFFF))


def _signed_32(value: int) -> int:
    return ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
