"""Weights: a missing, misshapen or unused tensor stops the load, and says its name."""

import pytest
import torch
from torch import Tensor

from inference_server.core.errors import ModelLoadError
from inference_server.models.registry import find_family
from inference_server.models.weights import Weights


class Source:
    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = {name.replace("__", "."): tensor for name, tensor in tensors.items()}

    def names(self) -> list[str]:
        return list(self.tensors)

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name]


def weights(**tensors: Tensor) -> Weights:
    return Weights(Source(**tensors), torch.device("cpu"), torch.bfloat16)


def test_taking_converts_and_counts() -> None:
    root = weights(a__b__weight=torch.ones(2, 3), a__c__weight=torch.zeros(1, 3))
    assert root.at("a").take("b.weight", 2, 3).dtype == torch.bfloat16
    assert root.at("a").take("b.weight", 2, 3, dtype=torch.float32).dtype == torch.float32
    assert root.at("a").linear(3, b=2, c=1)(torch.ones(1, 3)).tolist() == [[3.0, 3.0, 0.0]]
    assert root.num_parameters == 9
    root.check_all_taken(ignored=())


def test_a_missing_tensor_is_named() -> None:
    with pytest.raises(ModelLoadError, match=r"no tensor a\.b"):
        weights(b=torch.ones(1)).at("a").take("b", 1)


def test_a_misshapen_tensor_is_named() -> None:
    with pytest.raises(ModelLoadError, match=r"a\.b has the shape \(2, 3\), not \(3, 2\)"):
        weights(a__b=torch.ones(2, 3)).at("a").take("b", 3, 2)


def test_an_unused_tensor_is_named_unless_ignored() -> None:
    root = weights(a=torch.ones(1), vision__x=torch.ones(1))
    root.take("a", 1)
    root.check_all_taken(ignored=("vision.",))
    with pytest.raises(ModelLoadError, match=r"1 tensors .* vision\.x"):
        root.check_all_taken(ignored=("audio.",))


def test_the_registry_knows_gemma3_and_nothing_it_cannot_run() -> None:
    found = find_family({"architectures": ["Unknown", "Gemma3ForCausalLM"]})
    assert found is not None
    assert found[0] == "Gemma3ForCausalLM"
    assert find_family({"architectures": ["LlamaForCausalLM"]}) is None
    assert find_family({}) is None
