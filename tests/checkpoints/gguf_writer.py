"""A minimal GGUF writer: builds the small files that the reader's tests open."""

import struct
from pathlib import Path
from typing import Any

import numpy as np

_ALIGNMENT = 32


def write_gguf(path: Path, metadata: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], int, bytes]]) -> None:
    """Write a file. tensors: by name, the shape in torch order, the GGML type and the raw bytes."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_string(key) + _typed(value) for key, value in metadata.items())
    body = b""
    for name, (shape, kind, raw) in tensors.items():
        head += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", kind, len(body))
        body += raw + b"\0" * (-len(raw) % _ALIGNMENT)
    path.write_bytes(head + b"\0" * (-len(head) % _ALIGNMENT) + body)


def f32(array: np.ndarray) -> tuple[tuple[int, ...], int, bytes]:
    return array.shape, 0, array.astype("<f4").tobytes()


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _typed(value: Any) -> bytes:
    kind, payload = _value(value)
    return struct.pack("<I", kind) + payload


def _value(value: Any) -> tuple[int, bytes]:
    match value:
        case bool():
            return 7, struct.pack("<?", value)
        case int():
            return 4, struct.pack("<I", value)
        case float():
            return 6, struct.pack("<f", value)
        case str():
            return 8, _string(value)
        case list():
            items = [_value(item) for item in value]
            return 9, struct.pack("<IQ", items[0][0], len(items)) + b"".join(payload for _, payload in items)
    raise TypeError(type(value))
