"""Single-file and sharded checkpoints, whole and damaged."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from inference_server.checkpoints.errors import CheckpointError
from inference_server.checkpoints.safetensors_reader import open_checkpoint

A, B, C = torch.arange(4.0), torch.ones(2, 2, dtype=torch.bfloat16), torch.zeros(3)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_file({"a": A, "b": B}, tmp_path / "one.safetensors")
    save_file({"c": C}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "c": "two.safetensors", "b": "one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_single_file(tmp_path: Path) -> None:
    save_file({"a": A, "b": B}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert sorted(checkpoint.names()) == ["a", "b"]
    assert torch.equal(checkpoint.tensor("a"), A)
    assert checkpoint.tensor("b").dtype == torch.bfloat16


def test_tensors_come_from_the_shard_that_holds_them(sharded: Path) -> None:
    checkpoint = open_checkpoint(sharded)
    assert sorted(checkpoint.names()) == ["a", "b", "c"]
    assert all(torch.equal(checkpoint.tensor(name), tensor) for name, tensor in {"a": A, "b": B, "c": C}.items())


def test_damage_is_found_at_open(sharded: Path) -> None:
    two = sharded / "two.safetensors"
    whole = two.read_bytes()
    two.write_bytes(whole[:-4])
    with pytest.raises(CheckpointError, match=r"two\.safetensors: truncated or corrupt"):
        open_checkpoint(sharded)
    save_file({"d": C}, two)
    with pytest.raises(CheckpointError, match="1 tensors of the index are in no shard, such as c"):
        open_checkpoint(sharded)
    two.unlink()
    with pytest.raises(CheckpointError, match=r"two\.safetensors: the shard is missing"):
        open_checkpoint(sharded)
    (sharded / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="not a readable shard index"):
        open_checkpoint(sharded)


def test_empty_folder_and_unknown_tensor(tmp_path: Path, sharded: Path) -> None:
    with pytest.raises(CheckpointError, match="tensor z is missing"):
        open_checkpoint(sharded).tensor("z")
    with pytest.raises(CheckpointError, match="neither"):
        open_checkpoint(tmp_path / "nowhere")
