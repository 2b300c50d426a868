"""Weights: what becomes of a checkpoint, and that an unused tensor stops the load with its name."""

import pytest
import torch
from forward_driver import DictSource
from torch import Tensor

from inference_server.core.errors import ModelLoadError
from inference_server.kernels.reference import DequantizedLinear, StockLinear
from inference_server.models.registry import find_family
from inference_server.models.weights import Weights


def weights(**tensors: Tensor) -> Weights:
    return Weights(DictSource({name.replace("__", "."): tensor for name, tensor in tensors.items()}), torch.device("cpu"), torch.bfloat16)


def test_taking_converts_and_counts() -> None:
    root = weights(a__b__weight=torch.ones(2, 3), a__c__weight=torch.zeros(1, 3))
    assert root.at("a").take("b.weight", 2, 3).dtype == torch.bfloat16
    assert root.at("a").take("b.weight", 2, 3, dtype=torch.float32).dtype == torch.float32
    assert root.at("a").linear(3, b=2, c=1)(torch.ones(1, 3)).tolist() == [[3.0, 3.0, 0.0]]
    assert root.num_parameters == 9
    root.check_all_taken()


def test_layers_are_quantised_unless_they_are_too_sensitive() -> None:
    source = {"layer.weight": torch.ones(2, 3), "router.weight": torch.ones(2, 3)}
    root = Weights(DictSource(source), torch.device("cpu"), torch.bfloat16, quantize=True)
    assert isinstance(root.linear(3, layer=2).product, DequantizedLinear)
    assert isinstance(root.unquantized().linear(3, router=2).product, StockLinear)
    root.check_all_taken()


def test_an_unused_tensor_is_named_unless_it_is_known_not_to_be_needed() -> None:
    root = weights(a__k__weight=torch.ones(1), b=torch.ones(1))
    root.take("b", 1)
    with pytest.raises(ModelLoadError, match=r"1 tensors .* a\.k\.weight"):
        root.check_all_taken()
    root.at("a").skip("k")
    root.check_all_taken()


def test_vision_and_audio_are_skipped_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    weights(model__vision_tower__x=torch.ones(1), audio_tower__x=torch.ones(1)).check_all_taken()
    assert "skipped 2 tensors of vision and audio, such as audio_tower.x" in caplog.text


@pytest.mark.parametrize("prefix", ["model", "model.language_model", "language_model.model"])
def test_the_language_model_is_found_where_the_checkpoint_keeps_it(prefix: str) -> None:
    source = DictSource({f"{prefix}.embed_tokens.weight": torch.ones(2, 3)})
    assert "embed_tokens.weight" in Weights(source, torch.device("cpu"), torch.float32).text()


@pytest.mark.parametrize("name", ["Gemma3ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForCausalLM", "Qwen3MoeForCausalLM"])
def test_the_registry_finds_the_first_architecture_it_knows(name: str) -> None:
    found = find_family({"architectures": ["Unknown", name]})
    assert found is not None
    assert found[0] == name


def test_the_registry_knows_nothing_it_cannot_run() -> None:
    assert find_family({"architectures": ["LlamaForCausalLM"]}) is None
    assert find_family({}) is None
