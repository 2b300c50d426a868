"""Dequantisation of the GGML block formats that the embedded model uses, vectorised over blocks in numpy.

Each decoder takes blocks as `uint8 [num_blocks, block_bytes]` and returns `float32 [num_blocks, block_size]`.
The layouts are ggml's `block_*` structs (ggml-common.h). Reading files is `gguf.py`'s business.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """One GGML tensor type: its name, values per block, bytes per block, and block decoder."""

    name: str
    block_size: int
    block_bytes: int
    decode: Callable[[Bytes], Floats]


def _half(blocks: Bytes) -> Floats:
    """`[n, 2]` little-endian half floats to `float32 [n, 1]`."""
    return np.ascontiguousarray(blocks).view("<f2").astype(np.float32)


def decode_f32(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f4").astype(np.float32)


def decode_q8_0(blocks: Bytes) -> Floats:
    """d: half, q: int8[32]; x = d * q."""
    return _half(blocks[:, :2]) * blocks[:, 2:].view(np.int8).astype(np.float32)


def decode_q5_0(blocks: Bytes) -> Floats:
    """d: half, high bits: uint32, low nibbles: uint8[16]; x = d * (q - 16)."""
    high = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little")  # [n, 32]
    low = np.concatenate([blocks[:, 6:] & 0x0F, blocks[:, 6:] >> 4], axis=1)
    q: Floats = (low | (high << 4)).astype(np.float32) - 16
    return _half(blocks[:, :2]) * q


def decode_q4_k(blocks: Bytes) -> Floats:
    """d, dmin: half, 8 six-bit scales and minima in 12 bytes, nibbles: uint8[128]; x = d * scale * q - dmin * minimum."""
    n = len(blocks)
    packed = blocks[:, 4:16].reshape(n, 3, 4)
    low, middle, top = packed[:, 0], packed[:, 1], packed[:, 2]
    scales = np.concatenate([low & 0x3F, (top & 0x0F) | (low >> 6 << 4)], axis=1)  # [n, 8]
    minima = np.concatenate([middle & 0x3F, (top >> 4) | (middle >> 6 << 4)], axis=1)
    nibbles = blocks[:, 16:].reshape(n, 4, 1, 32)
    q: Bytes = np.concatenate([nibbles & 0x0F, nibbles >> 4], axis=2).reshape(n, 8, 32)
    scale: Floats = (_half(blocks[:, 0:2]) * scales)[:, :, None]
    minimum: Floats = (_half(blocks[:, 2:4]) * minima)[:, :, None]
    return (scale * q - minimum).reshape(n, 256)


def decode_q6_k(blocks: Bytes) -> Floats:
    """Low nibbles: uint8[128], high pairs: uint8[64], scales: int8[16], d: half; x = d * scale * (q - 32)."""
    n = len(blocks)
    low = blocks[:, :128].reshape(n, 2, 1, 64)
    low = np.concatenate([low & 0x0F, low >> 4], axis=2).reshape(n, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    high = (blocks[:, 128:192].reshape(n, 2, 1, 32) >> shifts) & 0x03
    q = (low | (high << 4)).astype(np.int8) - 32  # [n, 2, 4, 32]
    scale = _half(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8)  # [n, 16]
    return (scale[:, :, None] * q.reshape(n, 16, 16)).reshape(n, 256)


FORMATS: dict[int, QuantFormat] = {
    0: QuantFormat("F32", 1, 4, decode_f32),
    1: QuantFormat("F16", 1, 2, _half),
    6: QuantFormat("Q5_0", 32, 22, decode_q5_0),
    8: QuantFormat("Q8_0", 32, 34, decode_q8_0),
    12: QuantFormat("Q4_K", 256, 144, decode_q4_k),
    14: QuantFormat("Q6_K", 256, 210, decode_q6_k),
}
