"""Memory-mapped reader of a safetensors checkpoint folder: one `model.safetensors`, or shards with an index.

Every file's header is checked when the folder is opened, so a missing or truncated shard is reported before any weight is read.
Tensors are copied out a piece at a time, and only that piece is mapped meanwhile, so the process never holds more of the files than
that, wherever the tensors go.
"""

import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from tqdm import tqdm

from inference_server.checkpoints.errors import CheckpointError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PIECE_BYTES = 32 << 20  # in the host's memory at once
_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}  # what needs no scales


class StoredTensor(NamedTuple):
    """One entry of a header. dtype: as the format names it; start, stop: bytes within the file."""

    shard: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Checkpoint:
    """The tensors of one folder, read when asked for.

    progress: show a bar that names the shard, if standard error is a terminal.
    """

    def __init__(self, stored: Mapping[str, StoredTensor], progress: bool) -> None:
        self._stored = stored
        self._current: Path | None = None
        total = sum(entry.stop - entry.start for entry in stored.values())
        self._bar = tqdm(total=total, unit="B", unit_scale=True, disable=None if progress else True, leave=False)

    def names(self) -> list[str]:
        return list(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        """Raises `CheckpointError` if the checkpoint has no tensor of that name."""
        return self._entry(name).shape

    def copy(self, name: str, out: Tensor) -> None:
        """Copy one tensor into `out`, which is contiguous, on whatever device and in whatever floating-point dtype.

        Raises `CheckpointError` unless there is one of that name and of out's shape, stored as plain floating-point numbers.
        """
        entry = self._entry(name)
        if entry.shape != out.shape:
            raise CheckpointError(f"tensor {name} has the shape {entry.shape}, not {tuple(out.shape)}")
        if (dtype := _DTYPES.get(entry.dtype)) is None:
            raise CheckpointError(f"{entry.shard}: tensor {name} is stored as {entry.dtype}; only {', '.join(_DTYPES)} can be loaded")
        if entry.shard != self._current:
            self._current = entry.shard
            self._bar.set_description(f"Loading {entry.shard.name}")
        start = entry.start
        with entry.shard.open("rb") as file:
            for piece in out.view(-1).split(_PIECE_BYTES // dtype.itemsize):
                piece.copy_(_mapped(file, start, piece.numel(), dtype))
                start += piece.numel() * dtype.itemsize
                self._bar.update(piece.numel() * dtype.itemsize)

    def close(self) -> None:
        """End the progress bar."""
        self._bar.close()

    def _entry(self, name: str) -> StoredTensor:
        if name not in self._stored:
            raise CheckpointError(f"the checkpoint has no tensor {name}")
        return self._stored[name]


def open_checkpoint(folder: Path, progress: bool = True) -> Checkpoint:
    """Open the safetensors files of `folder`. Raises `CheckpointError` for a missing, truncated or inconsistent file."""
    return Checkpoint(_read_headers(folder), progress)


def _read_headers(folder: Path) -> dict[str, StoredTensor]:
    index = folder / _INDEX
    if not index.is_file():
        if not (folder / _SINGLE).is_file():
            raise CheckpointError(f"{folder}: neither {_SINGLE} nor {_INDEX} is there")
        return _read_header(folder / _SINGLE)
    try:
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards = [folder / name for name in dict.fromkeys(weight_map.values())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index}: not a readable shard index ({error})") from error
    stored: dict[str, StoredTensor] = {}
    for shard in shards:
        stored |= _read_header(shard)
    if absent := weight_map.keys() - stored.keys():
        raise CheckpointError(f"{folder}: {len(absent)} tensors of the index are in no shard, such as {min(absent)}")
    return stored


def _read_header(shard: Path) -> dict[str, StoredTensor]:
    """The tensors of one file, in its order. The library checks the format; the places of the tensors it keeps to itself."""
    if not shard.is_file():
        raise CheckpointError(f"{shard}: the shard is missing")
    try:
        with safe_open(shard, framework="np"), shard.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{shard}: truncated or corrupt ({error})") from error
    header.pop("__metadata__", None)
    places = {name: [8 + size + offset for offset in entry["data_offsets"]] for name, entry in header.items()}
    return {name: StoredTensor(shard, entry["dtype"], tuple(entry["shape"]), *places[name]) for name, entry in header.items()}


def _mapped(file: BinaryIO, start: int, count: int, dtype: torch.dtype) -> Tensor:
    """`count` values from byte `start`, as a tensor over the file's pages; they are unmapped with the tensor."""
    offset = start - start % mmap.ALLOCATIONGRANULARITY
    mapping = mmap.mmap(file.fileno(), start - offset + count * dtype.itemsize, access=mmap.ACCESS_COPY, offset=offset)
    return torch.frombuffer(mapping, dtype=dtype, count=count, offset=start - offset)
