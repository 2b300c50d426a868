"""Qwen3, dense and with experts, against transformers on tiny random models in fp32; and what its config accepts and refuses."""

import json
from typing import Any

import pytest
import torch
from forward_driver import DictSource, logits_of, weights_of
from tiny_models import QWEN3, QWEN3_MOE, TINY, qwen3_moe
from torch import Tensor
from transformers import PreTrainedModel

from inference_server.core.errors import ModelLoadError
from inference_server.models.attention import SLIDING
from inference_server.models.fields import RopeParameters
from inference_server.models.qwen3 import Qwen3, Qwen3Config
from inference_server.models.weights import Weights


def build(reference: PreTrainedModel) -> Qwen3:
    return Qwen3(Qwen3Config.from_dict(json.loads(reference.config.to_json_string())), weights_of(reference))


def check_logits(reference: PreTrainedModel) -> None:
    ids = torch.randint(0, 512, (50,))
    with torch.no_grad():
        expected = reference(ids[None]).logits[0]
    torch.testing.assert_close(logits_of(build(reference), ids), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", [name for name in TINY if name.startswith("qwen3")])
def test_logits_equal_those_of_transformers(name: str) -> None:
    check_logits(TINY[name]())


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_topk_prob": False, "tie_word_embeddings": True},
        {"mlp_only_layers": [], "decoder_sparse_step": 2},
        {"num_experts_per_tok": 8, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0}},
    ],
)
def test_the_options_of_experts_give_the_same_logits(changes: dict[str, Any]) -> None:
    check_logits(qwen3_moe(**{**QWEN3_MOE, **changes}))


def test_experts_stored_one_by_one_are_the_same() -> None:
    reference = TINY["qwen3-moe"]()
    tensors: dict[str, Tensor] = {}
    for name, tensor in reference.state_dict().items():
        stem = name.rpartition(".")[0]
        if name.endswith("experts.gate_up_proj"):
            for i, (gate, up) in enumerate(expert.chunk(2) for expert in tensor):
                tensors |= {f"{stem}.{i}.gate_proj.weight": gate, f"{stem}.{i}.up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            tensors |= {f"{stem}.{i}.down_proj.weight": expert for i, expert in enumerate(tensor)}
        else:
            tensors[name] = tensor
    assert len(tensors) > len(reference.state_dict())
    model = Qwen3(Qwen3Config.from_dict(QWEN3_MOE), Weights(DictSource(tensors), torch.device("cpu"), torch.float32))
    ids = torch.arange(9)
    assert logits_of(model, ids).equal(logits_of(build(reference), ids))


def test_the_layers_with_experts() -> None:
    assert Qwen3Config.from_dict(QWEN3).expert_layers == frozenset()
    assert Qwen3Config.from_dict(QWEN3_MOE).expert_layers == {0, 2}
    assert Qwen3Config.from_dict({**QWEN3_MOE, "decoder_sparse_step": 2, "mlp_only_layers": None}).expert_layers == {1}


def test_older_field_names_mean_the_same() -> None:
    old = {name: value for name, value in QWEN3_MOE.items() if name not in ("rope_parameters", "num_experts")}
    config = Qwen3Config.from_dict({**old, "rope_theta": 1e6, "rope_scaling": None, "num_local_experts": 8})
    assert config == Qwen3Config.from_dict(QWEN3_MOE)
    assert config.rope == RopeParameters(1e6)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"use_sliding_window": True},
        {"layer_types": [SLIDING] * 3},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
    ],
)
def test_what_is_not_built_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(ModelLoadError, match="is not supported for Qwen3"):
        Qwen3Config.from_dict({**QWEN3, **changes})


def test_a_head_size_that_is_not_named_follows_from_the_others() -> None:
    assert Qwen3Config.from_dict({name: value for name, value in QWEN3.items() if name != "head_dim"}).head_dim == 16
