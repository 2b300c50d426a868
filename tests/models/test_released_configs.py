"""The released sizes, built without memory: they have as many parameters as transformers counts."""

import importlib.util
from pathlib import Path

import pytest
import torch

from inference_server.models.registry import find_family
from inference_server.models.weights import RandomTensors, Weights

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench" / "released_configs.py"
spec = importlib.util.spec_from_file_location("released_configs", SCRIPT)
assert spec is not None and spec.loader is not None
released_configs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(released_configs)


def num_parameters(config: dict[str, object]) -> int:
    found = find_family(config)
    assert found is not None
    weights = Weights(RandomTensors(), torch.device("meta"), torch.bfloat16)
    found[1].model(found[1].config_from_dict(config), weights)
    return weights.num_parameters


@pytest.mark.parametrize(
    "name, billions",
    [("gemma4-e2b", 4.629), ("gemma4-e4b", 7.463), ("gemma4-26b-a4b", 25.233), ("gemma4-31b", 30.697), ("qwen3-30b-a3b", 30.532)],
)
def test_the_parameters_are_as_many_as_transformers_counts(name: str, billions: float) -> None:
    assert round(num_parameters(released_configs.CONFIGS[name]) / 1e9, 3) == billions


def test_the_kv_of_a_token_is_as_large_as_published() -> None:
    token_bytes = {}
    for name, config in released_configs.CONFIGS.items():
        found = find_family(config)
        assert found is not None
        token_bytes[name] = [group.token_bytes for group in found[1].config_from_dict(config).layer_groups(itemsize=2)]
    assert token_bytes == {
        "gemma4-e2b": [6144, 12 * 1024],
        "gemma4-e4b": [16384, 20 * 2048],
        "gemma4-26b-a4b": [20480, 25 * 8192],
        "gemma4-31b": [81920, 50 * 16384],
        "qwen3-30b-a3b": [98304],
    }


@pytest.mark.parametrize(
    ("name", "num_layers"), [("gemma4-e2b", 2), ("gemma4-e2b", 3), ("gemma4-e2b", 10), ("gemma4-e4b", 4), ("qwen3-30b-a3b", 10)]
)
def test_a_shortened_config_is_still_a_model(name: str, num_layers: int) -> None:
    config = released_configs.CONFIGS[name]
    assert 0 < num_parameters(released_configs.shortened(config, num_layers)) < num_parameters(config)


def test_the_written_config_counts_its_layers() -> None:
    written = released_configs.spelled_out(released_configs.shortened(released_configs.CONFIGS["gemma4-e2b"], 10))
    assert written["num_hidden_layers"] == len(written["layer_types"]) == 10
    assert released_configs.spelled_out(released_configs.CONFIGS["qwen3-30b-a3b"])["num_hidden_layers"] == 48
