"""Each vectorised block decoder against a scalar transcription of the format, on random bytes."""

import struct
from collections.abc import Callable

import numpy as np
import pytest

from inference_server.checkpoints.gguf_quants import FORMATS

Q5_0, Q8_0, Q4_K, Q6_K = 6, 8, 12, 14


def half(block: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", block, at)[0])


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def scalar_q8_0(block: bytes) -> list[float]:
    return [half(block, 0) * signed(byte) for byte in block[2:]]


def scalar_q5_0(block: bytes) -> list[float]:
    (bits,) = struct.unpack_from("<I", block, 2)
    out = []
    for i in range(32):
        nibble = block[6 + i % 16] >> (4 if i >= 16 else 0) & 15
        out.append(half(block, 0) * ((nibble | (bits >> i & 1) << 4) - 16))
    return out


def scalar_q4_k(block: bytes) -> list[float]:
    packed = block[4:16]
    out = []
    for i in range(256):
        group = i // 32
        if group < 4:
            scale, minimum = packed[group] & 63, packed[group + 4] & 63
        else:
            scale = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
            minimum = packed[group + 4] >> 4 | packed[group] >> 6 << 4
        byte = block[16 + group // 2 * 32 + i % 32]
        q = byte >> 4 if group % 2 else byte & 15
        out.append(half(block, 0) * scale * q - half(block, 2) * minimum)
    return out


def scalar_q6_k(block: bytes) -> list[float]:
    low, high, scales = block[:128], block[128:192], block[192:208]
    out = []
    for i in range(256):
        part, row, column = i // 128, i % 128 // 32, i % 32
        nibble = low[part * 64 + row % 2 * 32 + column] >> (4 if row >= 2 else 0) & 15
        pair = high[part * 32 + column] >> 2 * row & 3
        out.append(half(block, 208) * signed(scales[i // 16]) * ((nibble | pair << 4) - 32))
    return out


@pytest.mark.parametrize(
    ("kind", "half_offsets", "scalar"),
    [(Q8_0, [0], scalar_q8_0), (Q5_0, [0], scalar_q5_0), (Q4_K, [0, 2], scalar_q4_k), (Q6_K, [208], scalar_q6_k)],
)
def test_decoder_matches_the_scalar_form(kind: int, half_offsets: list[int], scalar: Callable[[bytes], list[float]]) -> None:
    fmt = FORMATS[kind]
    rng = np.random.default_rng(kind)
    blocks = rng.integers(0, 256, (40, fmt.block_bytes), dtype=np.uint8)
    for offset in half_offsets:
        scale = rng.normal(size=(40, 1)).astype("<f2")
        blocks[:, offset : offset + 2] = scale.view(np.uint8)
    expected = np.array([scalar(block.tobytes()) for block in blocks])
    decoded = fmt.decode(blocks)
    assert decoded.dtype == np.float32
    assert decoded.shape == (40, fmt.block_size)
    np.testing.assert_allclose(decoded, expected, rtol=1e-5, atol=1e-5)


def test_plain_floats_are_taken_as_they_are() -> None:
    values = np.array([[1.5], [-0.0], [65504.0]])
    for kind, dtype in ((0, "<f4"), (1, "<f2")):
        np.testing.assert_array_equal(FORMATS[kind].decode(values.astype(dtype).view(np.uint8)), values)
