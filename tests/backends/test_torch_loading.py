"""What `TorchBackend` says of the models that it loads, and of those that it cannot load."""

from pathlib import Path

import pytest
from torch_driver import MODELS, build, options
from transformers import MambaConfig, MambaForCausalLM

from inference_server.backends.torch_backend import TorchBackend
from inference_server.core.errors import EngineDeadError, ModelLoadError
from inference_server.core.plan import StepPlan
from inference_server.sampling.token_sampler import TokenSampler


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    build(request.param).save_pretrained(path)
    return path


def test_spec_tells_the_layout(folder: Path) -> None:
    spec = TorchBackend(options(), folder, TokenSampler(16)).load()
    windows = {
        "Gemma3ForCausalLM": [(None, (2,), 8), (6, (0, 1), 8)],
        "Gemma4ForCausalLM": [(None, (2,), 16), (6, (0, 1), 8)],
        "LlamaForCausalLM": [(None, (0, 1), 8)],
        "MistralForCausalLM": [(5, (0, 1), 8)],
        "Qwen3ForCausalLM": [(None, (0, 1), 8)],
    }
    assert [(group.window, group.layers, group.head_dim) for group in spec.groups] == windows[spec.architecture]
    assert (spec.vocab_size, spec.max_model_len, spec.device, spec.dtype) == (128, 256, "cpu", "float32")
    assert not spec.supports_mixed and spec.free_bytes > 0 and spec.num_parameters > 0


def test_dummy_weights_need_only_the_config(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    assert TorchBackend(options(load_format="dummy"), tmp_path, TokenSampler(16)).load().num_parameters > 0


def test_load_failures_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as missing:
        TorchBackend(options(), tmp_path / "absent", TokenSampler(16)).load()
    build("llama").save_pretrained(tmp_path / "llama")
    with pytest.raises(ModelLoadError, match="float33") as wrong_dtype:
        TorchBackend(options(dtype="float33"), tmp_path / "llama", TokenSampler(16)).load()
    next((tmp_path / "llama").glob("*.safetensors")).write_bytes(b"not weights")
    with pytest.raises(ModelLoadError) as corrupt:
        TorchBackend(options(), tmp_path / "llama", TokenSampler(16)).load()
    mamba = MambaForCausalLM(MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4))
    mamba.save_pretrained(tmp_path / "mamba")
    with pytest.raises(ModelLoadError) as stateful:
        TorchBackend(options(), tmp_path / "mamba", TokenSampler(16)).load()
    for failure in (missing, wrong_dtype, corrupt, stateful):
        assert "\n" not in str(failure.value)


def test_use_before_allocation(folder: Path) -> None:
    backend = TorchBackend(options(), folder, TokenSampler(16))
    with pytest.raises(EngineDeadError):
        backend.launch(StepPlan(0))
