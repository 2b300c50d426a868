"""Model files with any damage are either read, or soon refused in one clear line; nothing else happens."""

import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from tiny_gguf import vocabulary, write_tiny_gemma

from inference_server.checkpoints.errors import CheckpointError
from inference_server.checkpoints.gguf import GGUFFile
from inference_server.checkpoints.gguf_convert import write_hf_folder
from inference_server.checkpoints.gguf_tokenizer import build_tokenizer_json
from inference_server.checkpoints.safetensors_reader import open_checkpoint
from inference_server.core.errors import ModelLoadError

LIMIT_S = 1.0
NUMBERS = st.sampled_from([0, 1, 2, 7, 255, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1])
Damage = tuple[int, int, bytes]
DAMAGES = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 16), st.binary(max_size=16) | NUMBERS.map(lambda number: struct.pack("<Q", number))),
    min_size=1,
    max_size=4,
)
fuzzed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def damaged(data: bytes, damages: list[Damage], head: int) -> bytes:
    """Replace some of the first `head` bytes by others, of the same number or not."""
    for position, count, new in damages:
        start = position % head
        data = data[:start] + new + data[start + count :]
    return data


def read_or_refused(read: Callable[[], object]) -> None:
    start = time.thread_time()
    try:
        read()
    except ModelLoadError as error:
        assert "\n" not in str(error)
    assert time.thread_time() - start < LIMIT_S


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_gemma(path)
    return path


@fuzzed
@given(damages=DAMAGES)
def test_gguf(tiny: Path, tmp_path: Path, damages: list[Damage]) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged(tiny.read_bytes(), damages, head=tiny.stat().st_size if damages[0][0] % 4 == 0 else 20_000))

    def read() -> None:
        gguf = GGUFFile.open(path)
        for name in gguf.tensors:
            gguf.tensor(name)

    read_or_refused(read)


VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 0, 3, 2**32 - 1, 2**63, 0.0, float("nan"), float("inf"), "", "x", [], ["x"], [1]]
)


@pytest.fixture(scope="module")
def whole(tiny: Path) -> GGUFFile:
    return GGUFFile.open(tiny)


@fuzzed
@given(data=st.data())
def test_gguf_metadata_of_other_types(whole: GGUFFile, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    keys = st.sampled_from(sorted([*whole.metadata, "tokenizer.chat_template", "gemma3.rope.scaling.factor"]))
    metadata = whole.metadata | data.draw(st.dictionaries(keys, VALUES, min_size=1, max_size=2))
    gguf = GGUFFile(whole.path, whole._data, metadata, whole.tensors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GGUFFile, "open", lambda path: gguf)
        read_or_refused(lambda: write_hf_folder(whole.path, tmp_path_factory.mktemp("out"), greedy=False, progress=False))


def test_a_piece_of_the_vocabulary_as_long_as_the_file_is_refused() -> None:
    metadata = vocabulary()
    metadata["tokenizer.ggml.tokens"][-1] = "x" * 1_000_000
    with pytest.raises(CheckpointError, match="1000000 characters"):
        build_tokenizer_json(metadata)


STORED = save({"a": torch.ones(3, 4), "b": torch.ones(5, dtype=torch.bfloat16)})
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.sampled_from(["", "a", "b", "F32", "../x", "\0", "x.safetensors"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "dtype", "shape", "data_offsets", "weight_map"]), inner)
    ),
    max_leaves=8,
)


def read_folder(folder: Path) -> None:
    checkpoint = open_checkpoint(folder, progress=False)
    for name in checkpoint.names():
        checkpoint.copy(name, torch.empty(checkpoint.shape(name)))


@fuzzed
@given(damages=DAMAGES, header=st.none() | JSON)
def test_safetensors(tmp_path: Path, damages: list[Damage], header: Any) -> None:
    content = damaged(STORED, damages, head=len(STORED))
    if header is not None:
        text = json.dumps(header).encode()
        content = struct.pack("<Q", len(text)) + text + bytes(damages[0][0] % 100)
    (tmp_path / "model.safetensors").write_bytes(content)
    read_or_refused(lambda: read_folder(tmp_path))


@fuzzed
@given(index=JSON | st.sampled_from(["[" * 100_000, '{"weight_map": {"a": 7, "b": ["x"]}}', "\ud800"]))
def test_safetensors_index(tmp_path: Path, index: Any) -> None:
    (tmp_path / "x.safetensors").write_bytes(STORED)
    text = index if isinstance(index, str) else json.dumps({"weight_map": index})
    (tmp_path / "model.safetensors.index.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    read_or_refused(lambda: read_folder(tmp_path))
