"""Reader of GGUF files (versions 2 and 3, little-endian), memory-mapped.

It gives the metadata, the tensor directory and dequantised tensors. What the keys mean for a model is
`gguf_convert.py`'s business. Any damage is a `CheckpointError`, found at `open` wherever the directory shows it.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from inference_server.checkpoints.errors import CheckpointError
from inference_server.checkpoints.gguf_quants import FORMATS, QuantFormat

_SCALARS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
_STRING, _ARRAY = 8, 9
_MAX_NESTING = 4
_CHUNK_VALUES = 1 << 21  # dequantised at once: bounds the float32 scratch to 8 MiB
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One directory entry; `shape` is in torch order (GGUF's reversed), `offset` is absolute in the file."""

    name: str
    shape: tuple[int, ...]
    format: QuantFormat
    offset: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) // self.format.block_size * self.format.block_bytes


class _Cursor:
    """Sequential reads from a mapped file; every read past the end raises `ValueError`."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0

    def take(self, count: int) -> int:
        """Skip `count` bytes and return where they start."""
        start = self.position
        if count > len(self.data) - start:
            raise ValueError(f"{count} bytes wanted at offset {start}, the file ends at {len(self.data)}")
        self.position += count
        return start

    def number(self, code: str) -> int:
        size = struct.calcsize(code)
        return int(struct.unpack_from(code, self.data, self.take(size))[0])

    def string(self) -> str:
        length = self.number("<Q")
        start = self.take(length)
        return self.data[start : start + length].decode("utf-8")

    def strings(self, count: int) -> list[str]:
        """`count` strings in one tight loop: a vocabulary holds a quarter of a million."""
        data, position, unpack = self.data, self.position, struct.Struct("<Q").unpack_from
        out: list[str] = []
        for _ in range(count):
            start = position + 8
            position = start + unpack(data, position)[0]
            if position > len(data):
                raise ValueError(f"a string at offset {start} runs past the end of the file")
            out.append(data[start:position].decode("utf-8"))
        self.position = position
        return out

    def scalars(self, dtype: np.dtype[Any], count: int) -> list[Any]:
        start = self.take(dtype.itemsize * count)
        values: list[Any] = np.frombuffer(self.data, dtype, count, start).tolist()
        return values

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(depth)
        if kind not in _SCALARS:
            raise ValueError(f"unknown metadata type {kind}")
        return self.scalars(np.dtype(_SCALARS[kind]), 1)[0]

    def _array(self, depth: int) -> list[Any]:
        kind, count = self.number("<I"), self.number("<Q")
        if kind == _STRING:
            return self.strings(count)
        if kind in _SCALARS:
            return self.scalars(np.dtype(_SCALARS[kind]), count)
        if depth == _MAX_NESTING:
            raise ValueError("arrays are nested too deeply")
        return [self.value(kind, depth + 1) for _ in range(count)]


class GGUFFile:
    """An open GGUF file.

    `metadata` maps keys to Python scalars, strings and lists; `tensors` maps names to `TensorInfo`.
    """

    def __init__(self, path: Path, data: mmap.mmap, metadata: dict[str, Any], tensors: dict[str, TensorInfo]) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self._data = data

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map `path` and read its directory.

        Raises `CheckpointError` if the file is missing, not GGUF, truncated, corrupt, or holds an unsupported tensor type.
        """
        try:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            metadata, tensors = _read_directory(data)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
        except (ValueError, struct.error) as error:
            raise CheckpointError(f"{path}: not a readable GGUF file ({error})") from error
        return cls(path, data, metadata, tensors)

    def tensor(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Dequantise one tensor in float32 and round it to `dtype`. Raises `CheckpointError` if it is not in the file."""
        info = self.tensors.get(name)
        if info is None:
            raise CheckpointError(f"{self.path}: tensor {name} is missing")
        fmt = info.format
        blocks = np.frombuffer(self._data, np.uint8, info.num_bytes, info.offset).reshape(-1, fmt.block_bytes)
        out = torch.empty(len(blocks), fmt.block_size, dtype=dtype)
        step = _CHUNK_VALUES // fmt.block_size
        for start in range(0, len(blocks), step):
            out[start : start + step] = torch.from_numpy(fmt.decode(blocks[start : start + step]))
        return out.reshape(info.shape)


def _read_directory(data: mmap.mmap) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    if data[:4] != b"GGUF":
        raise ValueError("the magic bytes are wrong")
    cursor = _Cursor(data)
    cursor.take(4)
    if (version := cursor.number("<I")) not in (2, 3):
        raise ValueError(f"version {version} is not supported")
    num_tensors, num_keys = cursor.number("<Q"), cursor.number("<Q")
    metadata = {cursor.string(): cursor.value(cursor.number("<I")) for _ in range(num_keys)}
    entries = [_read_entry(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0:
        raise ValueError(f"the alignment is {alignment!r}")
    base = -(-cursor.position // alignment) * alignment
    tensors = {name: TensorInfo(name, shape, fmt, base + offset) for name, shape, fmt, offset in entries}
    for info in tensors.values():
        if info.offset + info.num_bytes > len(data):
            raise ValueError(f"tensor {info.name} runs past the end of the file: it is truncated")
    return metadata, tensors


def _read_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], QuantFormat, int]:
    name, rank = cursor.string(), cursor.number("<I")
    if rank > 4:
        raise ValueError(f"tensor {name} has {rank} dimensions")
    shape = tuple(cursor.number("<Q") for _ in range(rank))[::-1]
    kind, offset = cursor.number("<I"), cursor.number("<Q")
    if (fmt := FORMATS.get(kind)) is None:
        known = ", ".join(f.name for f in FORMATS.values())
        raise ValueError(f"tensor {name} has the unsupported GGML type {kind}; supported are {known}")
    if not all(shape):
        raise ValueError(f"tensor {name} has no values")
    if (row := shape[-1] if shape else 1) % fmt.block_size:
        raise ValueError(f"tensor {name}: rows of {row} values are no whole number of {fmt.name} blocks")
    return name, shape, fmt, offset
