"""Conversion of a whole tiny Gemma 3 GGUF file into a Hugging Face folder."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_writer import f32, write_gguf
from tiny_gguf import write_tiny_gemma

from inference_server.checkpoints.errors import CheckpointError
from inference_server.checkpoints.gguf_convert import convert_gguf, hf_name, write_hf_folder
from inference_server.checkpoints.safetensors_reader import open_checkpoint


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_tiny_gemma(path)
    return path


def test_folder_holds_config_tokenizer_and_all_weights(path: Path, tmp_path: Path) -> None:
    arrays = write_tiny_gemma(path)
    folder = convert_gguf(path, tmp_path / "cache", progress=False)
    config = json.loads((folder / "config.json").read_text())
    assert config["layer_types"] == ["sliding_attention"] * 5 + ["full_attention"]
    assert (config["hidden_size"], config["num_key_value_heads"], config["query_pre_attn_scalar"]) == (64, 1, 32)
    assert json.loads((folder / "tokenizer_config.json").read_text())["bos_token"] == "<bos>"
    checkpoint = open_checkpoint(folder)
    assert len(checkpoint.names()) == len(arrays)
    for name, array in arrays.items():
        expected = array.astype(np.float32) - (1 if name.endswith("norm.weight") else 0)
        checkpoint.copy(hf_name(name), tensor := torch.empty(expected.shape, dtype=torch.bfloat16))
        assert torch.equal(tensor, torch.from_numpy(expected).bfloat16()), name


def test_generation_defaults(path: Path, tmp_path: Path) -> None:
    ids = {"bos_token_id": 2, "eos_token_id": [1], "pad_token_id": 0}
    for greedy, extra in ((True, {"do_sample": False, "temperature": 0.0}), (False, {})):
        folder = tmp_path / str(greedy)
        folder.mkdir()
        write_hf_folder(path, folder, greedy=greedy, progress=False)
        assert json.loads((folder / "generation_config.json").read_text()) == ids | extra


def test_a_file_is_converted_once_and_again_when_it_changes(path: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folder = convert_gguf(path, cache, progress=False)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert convert_gguf(path, cache, progress=False) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    os.utime(path, ns=(1, 1))
    assert convert_gguf(path, cache, progress=False) != folder


def test_other_architectures_and_stray_tensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    write_gguf(path, {"general.architecture": "llama"}, {"a": f32(np.zeros(1))})
    with pytest.raises(CheckpointError, match="'llama' is not supported"):
        convert_gguf(path, tmp_path)
    write_gguf(path, {"general.architecture": "gemma3"}, {"a": f32(np.zeros(1))})
    with pytest.raises(CheckpointError, match="incomplete metadata"):
        convert_gguf(path, tmp_path)
    with pytest.raises(CheckpointError, match="does not belong"):
        hf_name("blk.0.ssm_a.weight")
    with pytest.raises(CheckpointError, match="no such file"):
        convert_gguf(tmp_path / "absent.gguf", tmp_path)
    assert not [entry for entry in tmp_path.iterdir() if entry.is_dir()], "a failed conversion leaves no folder"


@pytest.mark.heavy
def test_transformers_loads_the_folder(path: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = convert_gguf(path, tmp_path / "cache", progress=False)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert type(model).__name__ == "Gemma3ForCausalLM"
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_ids_to_tokens(tokenizer("the thing").input_ids) == ["<bos>", "the", "▁th", "ing"]
