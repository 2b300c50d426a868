"""Memory-mapped reader of a safetensors checkpoint folder: one `model.safetensors`, or shards with an index.

Every file's header is checked when the folder is opened, so a missing or truncated shard is reported before any weight is read.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from inference_server.checkpoints.errors import CheckpointError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class Checkpoint:
    """The tensors of one folder. Shards stay mapped while the object lives; tensors are read when asked for."""

    def __init__(self, shards: Mapping[Path, Any]) -> None:
        self._shards = shards
        self._shard_of = {name: path for path, shard in shards.items() for name in shard.keys()}  # noqa: SIM118

    def names(self) -> list[str]:
        return list(self._shard_of)

    def tensor(self, name: str) -> torch.Tensor:
        """Read one tensor in its stored dtype. Raises `CheckpointError` if the checkpoint has none of that name."""
        path = self._shard_of.get(name)
        if path is None:
            raise CheckpointError(f"tensor {name} is missing from the checkpoint")
        tensor: torch.Tensor = self._shards[path].get_tensor(name)
        return tensor


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open the safetensors files of `folder`. Raises `CheckpointError` for a missing, truncated or inconsistent file."""
    index = folder / _INDEX
    if not index.is_file():
        if not (folder / _SINGLE).is_file():
            raise CheckpointError(f"{folder}: neither {_SINGLE} nor {_INDEX} is there")
        return Checkpoint({folder / _SINGLE: _open_shard(folder / _SINGLE)})
    try:
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{index}: not a readable shard index ({error})") from error
    checkpoint = Checkpoint({folder / name: _open_shard(folder / name) for name in dict.fromkeys(weight_map.values())})
    if absent := weight_map.keys() - set(checkpoint.names()):
        raise CheckpointError(f"{folder}: {len(absent)} tensors of the index are in no shard, such as {min(absent)}")
    return checkpoint


def _open_shard(path: Path) -> Any:
    if not path.is_file():
        raise CheckpointError(f"{path}: the shard is missing")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: truncated or corrupt ({error})") from error
