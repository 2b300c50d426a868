"""Gemma 3 against transformers on a tiny random model in fp32: logits, and what its config accepts and refuses."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from forward_driver import DictSource, logits_of, weights_of
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from inference_server.core.errors import ModelLoadError
from inference_server.models.attention import FULL, SLIDING
from inference_server.models.fields import RopeParameters
from inference_server.models.gemma3 import Gemma3, Gemma3Config
from inference_server.models.weights import Weights

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "query_pre_attn_scalar": 48,
    "sliding_window": 8,
    "sliding_window_pattern": 3,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}


def tiny(**changes: Any) -> Gemma3ForCausalLM:
    torch.manual_seed(7)
    reference = Gemma3ForCausalLM(Gemma3TextConfig(**{**SIZES, **changes})).eval()
    for name, parameter in reference.named_parameters():
        if "norm" in name:  # they start at zero, which would hide a norm that is left out or scaled wrongly
            torch.nn.init.uniform_(parameter, -0.5, 0.5)
    return reference


def build(reference: Gemma3ForCausalLM, config: dict[str, Any] | None = None) -> Gemma3:
    parsed = Gemma3Config.from_dict(config or json.loads(reference.config.to_json_string(use_diff=False)))
    return Gemma3(parsed, weights_of(reference))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": 1, "final_logit_softcapping": 3.0},
        {"num_key_value_heads": 4, "layer_types": [FULL, SLIDING] * 3, "sliding_window": 5},
        {
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                SLIDING: {"rope_type": "default", "rope_theta": 5e3},
            }
        },
    ],
)
def test_logits_equal_those_of_transformers(changes: dict[str, Any]) -> None:
    reference = tiny(**changes)
    ids = torch.randint(0, 512, (50,))
    with torch.no_grad():
        expected = reference(ids[None]).logits[0]
    torch.testing.assert_close(logits_of(build(reference), ids), expected, atol=1e-4, rtol=0)


def test_the_older_flat_rope_fields_mean_the_same() -> None:
    flat = Gemma3Config.from_dict(
        {**SIZES, "rope_theta": 2e5, "rope_local_base_freq": 3e3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    )
    assert flat.rope == {FULL: RopeParameters(2e5, factor=8.0), SLIDING: RopeParameters(3e3)}
    assert Gemma3Config.from_dict(SIZES).rope == {FULL: RopeParameters(1e6), SLIDING: RopeParameters(1e4)}


def test_the_text_part_of_a_multimodal_config_counts() -> None:
    nested = Gemma3Config.from_dict({"architectures": ["Gemma3ForConditionalGeneration"], "hidden_size": 1, "text_config": SIZES})
    assert nested == Gemma3Config.from_dict(SIZES)
    assert nested.layer_types == (SLIDING, SLIDING, FULL) * 2


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_multimodal_names_load_and_vision_is_skipped(prefix: str) -> None:
    reference = tiny()
    tensors = {name.replace("model.", prefix, 1): tensor for name, tensor in reference.state_dict().items()}
    tensors["model.vision_tower.patch.weight"] = torch.zeros(1)
    model = Gemma3(Gemma3Config.from_dict(SIZES), Weights(DictSource(tensors), torch.device("cpu"), torch.float32))
    ids = torch.arange(9)
    assert logits_of(model, ids).equal(logits_of(build(reference), ids))


@pytest.mark.parametrize(
    "field, value",
    [
        ("hidden_activation", "silu"),
        ("attention_bias", True),
        ("attn_logit_softcapping", 50.0),
        ("use_bidirectional_attention", True),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
        ("layer_types", ["chunked_attention"] * 6),
    ],
)
def test_what_is_not_built_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ModelLoadError, match=str(value) if isinstance(value, float) else "not supported"):
        Gemma3Config.from_dict({**SIZES, field: value})


def test_layer_groups_put_full_attention_first() -> None:
    config = Gemma3Config.from_dict(SIZES)
    full, window = config.layer_groups(itemsize=2)
    assert (full.layers, full.window) == ((2, 5), None)
    assert (window.layers, window.window) == ((0, 1, 3, 4), 8)
    assert len(replace(config, layer_types=(FULL, FULL)).layer_groups(2)) == 1
