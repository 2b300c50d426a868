"""The BACKEND setting: which class each value chooses, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from paged_driver import options

from inference_server.backends.factory import create_backend
from inference_server.backends.paged_backend import PagedBackend
from inference_server.backends.torch_backend import TorchBackend
from inference_server.core.errors import ModelLoadError


def folder_of(tmp_path: Path, architecture: str) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    return tmp_path


@pytest.mark.parametrize(
    "backend, architecture, expected",
    [
        ("auto", "Gemma3ForCausalLM", PagedBackend),
        ("auto", "LlamaForCausalLM", TorchBackend),
        ("custom", "Gemma3ForCausalLM", PagedBackend),
        ("hf", "Gemma3ForCausalLM", TorchBackend),
    ],
)
def test_the_setting_and_the_architecture_choose(tmp_path: Path, backend: str, architecture: str, expected: type) -> None:
    assert isinstance(create_backend(replace(options(), backend=backend), folder_of(tmp_path, architecture)), expected)


def test_custom_cuda_is_the_hand_written_forward_or_nothing(tmp_path: Path) -> None:
    chosen = replace(options(device="auto"), backend="custom-cuda")
    backend = create_backend(chosen, folder_of(tmp_path, "Gemma3ForCausalLM"))
    assert isinstance(backend, PagedBackend)
    if not torch.cuda.is_available():
        with pytest.raises(ModelLoadError, match="'cuda' is not available"):
            backend.load()


@pytest.mark.parametrize("backend", ["custom-cuda", "vllm"])
def test_a_backend_that_is_not_there_is_refused(tmp_path: Path, backend: str) -> None:
    with pytest.raises(ModelLoadError, match=backend):
        create_backend(replace(options(), backend=backend), folder_of(tmp_path, "Gemma3ForCausalLM"))


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        create_backend(options(), tmp_path)


def test_transformers_has_no_tables_to_offload(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="PLE_OFFLOAD needs a hand-written forward"):
        create_backend(replace(options(), backend="hf", ple_offload=True), folder_of(tmp_path, "Gemma3ForCausalLM"))


def test_transformers_does_not_quantise(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="QUANTIZATION=int8"):
        create_backend(replace(options(), backend="hf", quantization="int8"), folder_of(tmp_path, "Gemma3ForCausalLM"))
