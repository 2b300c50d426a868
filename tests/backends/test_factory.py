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


def test_custom_cuda_is_the_hand_written_forward_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, folder = replace(options(device="auto"), backend="custom-cuda"), folder_of(tmp_path, "Gemma3ForCausalLM")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for device in ("auto", "cuda", "cuda:1"):
        assert isinstance(create_backend(replace(chosen, device=device), folder), PagedBackend)
    with pytest.raises(ModelLoadError, match="'cuda:2' is not available here; CUDA devices, counted from 0: 2"):
        create_backend(replace(chosen, device="cuda:2"), folder)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelLoadError, match=r"^BACKEND=custom-cuda runs on CUDA; DEVICE=auto is (cpu|mps) here$"):
        create_backend(chosen, folder)
    with pytest.raises(ModelLoadError, match=r"^DEVICE 'cuda' is not available here$"):
        create_backend(replace(chosen, device="cuda"), folder)


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
