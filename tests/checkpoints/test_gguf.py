"""The GGUF reader on small files written here, whole and damaged."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_writer import f32, write_gguf

from inference_server.checkpoints.errors import CheckpointError
from inference_server.checkpoints.gguf import GGUFFile

METADATA = {
    "general.architecture": "gemma3",
    "n": 7,
    "x": 0.5,
    "flag": True,
    "words": ["a", "", "größe", "▁日本"],
    "numbers": [1, 2, 3],
    "nested": [[1.0, 2.0], [3.0]],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    q8 = np.arange(64, dtype=np.uint8).tobytes()
    blocks = b"".join(np.float16(2.0).tobytes() + q8[i : i + 32] for i in (0, 32))
    write_gguf(path, METADATA, {"a": f32(np.arange(6.0).reshape(2, 3)), "b": ((2, 32), 8, blocks)})
    return path


def test_metadata_and_tensors_come_back(path: Path) -> None:
    gguf = GGUFFile.open(path)
    assert gguf.metadata == METADATA
    assert {name: info.shape for name, info in gguf.tensors.items()} == {"a": (2, 3), "b": (2, 32)}
    assert torch.equal(gguf.tensor("a"), torch.arange(6.0).reshape(2, 3))
    b = gguf.tensor("b", torch.bfloat16)
    assert b.dtype == torch.bfloat16
    assert torch.equal(b, 2 * torch.arange(64).reshape(2, 32).bfloat16())


def test_large_tensor_is_decoded_in_chunks(tmp_path: Path) -> None:
    values = np.arange((1 << 21) + 5, dtype=np.float32)
    write_gguf(tmp_path / "large.gguf", {}, {"a": f32(values)})
    assert torch.equal(GGUFFile.open(tmp_path / "large.gguf").tensor("a"), torch.from_numpy(values))


def test_every_truncation_is_one_clear_error(path: Path) -> None:
    data = path.read_bytes()
    for length in range(0, len(data) - 40, 7):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError) as error:
            GGUFFile.open(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)


def test_no_single_corrupt_byte_escapes_as_another_error(path: Path) -> None:
    data = path.read_bytes()
    for index in range(len(data) - 200):
        path.write_bytes(data[:index] + bytes([data[index] ^ 0xFF]) + data[index + 1 :])
        try:
            gguf = GGUFFile.open(path)
        except CheckpointError:
            continue
        for name in gguf.tensors:
            gguf.tensor(name)


def test_missing_file_missing_tensor_and_unknown_type(path: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        GGUFFile.open(tmp_path / "absent.gguf")
    with pytest.raises(CheckpointError, match="tensor c is missing"):
        GGUFFile.open(path).tensor("c")
    write_gguf(path, {}, {"a": ((32,), 2, bytes(18))})
    with pytest.raises(CheckpointError, match="unsupported GGML type 2"):
        GGUFFile.open(path)
