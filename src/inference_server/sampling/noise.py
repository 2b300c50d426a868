"""Counter-based random numbers: a pure function of (seed, position, token id), the same bits on every device.

There is no generator state, so a row's draw depends on nothing but the row. The hash is MurmurHash3's 32-bit finaliser (Appleby, 2011)
over a token hash, keyed with 64 bits that SplitMix64 (Steele et al., OOPSLA 2014) makes of seed and position. int32 tensors wrap on
overflow, which is the arithmetic modulo 2**32 that the hash wants, and vectorise where int64 products do not.
"""

import sys
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MASK_64 = (1 << 64) - 1
_BELOW_ONE = 1.0 - 2.0**-24  # the largest float32 below 1


def row_keys(seeds: Sequence[int], positions: Sequence[int], device: torch.device) -> Tensor:
    """One 64-bit key a row, as [R, 2] int32: an offset and an odd multiplier. Seeds count modulo 2**64."""
    mixed = mix_seeds(np.array([seed & _MASK_64 for seed in seeds], dtype=np.uint64))
    return torch.from_numpy(keys_at(mixed, np.array(positions, dtype=np.uint64))).to(device)


def mix_seeds(seeds: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """What `keys_at` takes: the part of the keys that is the same for every position."""
    return _mix_64(seeds)


def keys_at(mixed_seeds: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.int32]:
    """[R] and [R] to [R, 2]: the keys of `row_keys`."""
    keys = _mix_64(mixed_seeds + positions).view(np.uint32).reshape(-1, 2)
    if sys.byteorder == "big":
        keys = keys[:, ::-1]
    return (keys | np.array([0, 1], dtype=np.uint32)).view(np.int32)


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


def _mix_64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _mix_32_(bits: Tensor) -> Tensor:
    """MurmurHash3's finaliser, in place. The masks make the arithmetic shifts of int32 logical ones."""
    bits.bitwise_xor_((bits >> 16).bitwise_and_(0xFFFF)).mul_(_signed_32(0x85EBCA6B))
    bits.bitwise_xor_((bits >> 13).bitwise_and_(0x7FFFF)).mul_(_signed_32(0xC2B2AE35))
    return bits.bitwise_xor_((bits >> 16).bitwise_and_(0xFFFF))


def _signed_32(value: int) -> int:
    return ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
