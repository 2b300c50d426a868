"""Single-file and sharded checkpoints, whole and damaged."""

import json
from contextlib import closing
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from inference_server.checkpoints import safetensors_reader
from inference_server.checkpoints.errors import CheckpointError
from inference_server.checkpoints.safetensors_reader import Checkpoint, open_checkpoint

A, B, C = torch.arange(4.0), torch.ones(2, 2, dtype=torch.bfloat16), torch.zeros(3)


def read(checkpoint: Checkpoint, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    out = torch.empty(checkpoint.shape(name), dtype=dtype)
    checkpoint.copy(name, out)
    return out


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
    assert torch.equal(read(checkpoint, "a"), A)
    assert torch.equal(read(checkpoint, "b", torch.bfloat16), B)


def test_tensors_arrive_in_the_dtype_that_is_asked_for(tmp_path: Path) -> None:
    stored = torch.linspace(-3, 3, 7)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        save_file({"odd": torch.ones(1, dtype=torch.bfloat16), "x": stored.to(dtype)}, tmp_path / "model.safetensors")
        checkpoint = open_checkpoint(tmp_path)
        for wanted in (torch.bfloat16, torch.float32):
            assert torch.equal(read(checkpoint, "x", wanted), stored.to(dtype).to(wanted))


def test_a_tensor_is_read_in_pieces_that_do_not_end_with_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_reader, "_PIECE_BYTES", 10_000)
    tensors = {name: torch.randn(101, 53) for name in "ab"}
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    for name in "aba":
        assert torch.equal(read(checkpoint, name), tensors[name])


@pytest.mark.parametrize("dtype", [torch.int64, torch.float8_e4m3fn, torch.bool])
def test_a_dtype_that_needs_more_than_conversion_is_refused_by_name(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"x": torch.ones(3).to(dtype)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"tensor x is stored as [A-Z0-9_]+; only BF16, F16, F32 can be loaded"):
        read(open_checkpoint(tmp_path), "x")


def test_the_bar_names_the_shards(sharded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for on_a_terminal in (True, False):
        monkeypatch.setattr("sys.stderr.isatty", lambda answer=on_a_terminal: answer)
        with closing(open_checkpoint(sharded)) as checkpoint:
            for name in "cab":
                read(checkpoint, name)
        shown = capsys.readouterr().err
        assert ("one.safetensors" in shown) is on_a_terminal
        assert bool(shown) is on_a_terminal


def test_tensors_come_from_the_shard_that_holds_them(sharded: Path) -> None:
    checkpoint = open_checkpoint(sharded)
    assert sorted(checkpoint.names()) == ["a", "b", "c"]
    assert all(torch.equal(read(checkpoint, name, tensor.dtype), tensor) for name, tensor in {"a": A, "b": B, "c": C}.items())


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


def test_a_tensor_of_another_shape_is_refused_by_name(sharded: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tensor b has the shape \(2, 2\), not \(4,\)"):
        open_checkpoint(sharded).copy("b", torch.empty(4))


def test_empty_folder_and_unknown_tensor(tmp_path: Path, sharded: Path) -> None:
    with pytest.raises(CheckpointError, match="no tensor z"):
        open_checkpoint(sharded).shape("z")
    with pytest.raises(CheckpointError, match="neither"):
        open_checkpoint(tmp_path / "nowhere")
