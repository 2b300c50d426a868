"""Gemma 4 against transformers on tiny random models in fp32: logits, in one case to the last bit; and how its config is read."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from forward_driver import Attention, DictSource, logits_of, weights_of
from tiny_models import GEMMA4, KEYS_ARE_VALUES, MOE_GEMMA4, NO_EXTRAS, SMALL_GEMMA4, TINY, gemma4
from torch import Tensor
from transformers import PreTrainedModel

from inference_server.core.errors import ModelLoadError
from inference_server.kernels.composed import ComposedLinear
from inference_server.kernels.ops import PLAIN, Epilogue, FusedLinear
from inference_server.kernels.reference import StockLinear, add_norm, gated
from inference_server.models.attention import FULL, SLIDING
from inference_server.models.fields import RopeParameters
from inference_server.models.gemma4 import Gemma4
from inference_server.models.gemma4_config import Gemma4Config
from inference_server.models.weights import Weights

GEMMAS = [name for name in TINY if name.startswith("gemma4")]


def config_of(reference: PreTrainedModel) -> dict[str, Any]:
    return json.loads(reference.config.to_json_string())


def build(reference: PreTrainedModel) -> Gemma4:
    return Gemma4(Gemma4Config.from_dict(config_of(reference)), weights_of(reference))


def check_logits(reference: PreTrainedModel) -> None:
    ids = torch.randint(0, 512, (50,))
    with torch.no_grad():
        expected = reference(ids[None]).logits[0]
    torch.testing.assert_close(logits_of(build(reference), ids), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", GEMMAS)
def test_logits_equal_those_of_transformers(name: str) -> None:
    check_logits(TINY[name]())


@pytest.mark.parametrize(
    "config",
    [
        {**GEMMA4, **NO_EXTRAS, "num_global_key_value_heads": 1},  # without attention_k_eq_v this field means nothing
        {**GEMMA4, **NO_EXTRAS, "attention_k_eq_v": True},
        {**SMALL_GEMMA4, **KEYS_ARE_VALUES, "num_key_value_heads": 2},
        {**SMALL_GEMMA4, "num_kv_shared_layers": 0, "final_logit_softcapping": None},
        {**SMALL_GEMMA4, "layer_types": [FULL] * 8, "vocab_size_per_layer_input": 600},
        {**MOE_GEMMA4, "top_k_experts": 8, "use_bidirectional_attention": "vision"},
        {
            **SMALL_GEMMA4,
            "rope_parameters": {
                FULL: {"rope_type": "proportional", "rope_theta": 1e5, "partial_rotary_factor": 0.5, "factor": 2.0},
                SLIDING: {"rope_type": "linear", "rope_theta": 5e3, "factor": 4.0},
            },
        },
    ],
    ids=["kv heads alike", "keys only", "shared keys only", "nothing shared", "full only", "all experts", "rope"],
)
def test_the_options_apart_give_the_same_logits(config: dict[str, Any]) -> None:
    check_logits(gemma4(**config))


class EagerAttention:
    """The attention of transformers' eager path, operation by operation, over the blocks of one row."""

    def __init__(self, window: int | None, table: Tensor) -> None:
        self.window, self.blocks = window, table[0].long()

    def __call__(self, q: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        count, group = len(q), q.shape[1] // key.shape[2]
        k, v = (kv[self.blocks].flatten(0, 1)[:count].transpose(0, 1).repeat_interleave(group, dim=0)[None] for kv in (key, value))
        distance = torch.arange(count)[:, None] - torch.arange(count)
        hidden = (distance < 0) | (distance >= (self.window or count))
        mask = torch.zeros(count, count).masked_fill(hidden, torch.finfo(torch.float32).min)
        weights = torch.matmul(q.transpose(0, 1)[None], k.transpose(2, 3)) * scale + mask
        return torch.matmul(weights.softmax(-1), v)[0].transpose(0, 1)


class Unfused(Weights):
    """Weights that make every matrix a multiplication of its own, and join the outputs afterwards."""

    def linear(self, in_features: int, epilogue: Epilogue = PLAIN, /, **out_features: int) -> FusedLinear:
        layers = [StockLinear(self.take(f"{name}.weight", size, in_features)) for name, size in out_features.items()]
        return ComposedLinear(layers[0] if len(layers) == 1 else Joined(layers), epilogue, gated, add_norm)


class Joined:
    def __init__(self, layers: list[StockLinear]) -> None:
        self.layers = layers

    def __call__(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        return torch.cat([layer(x, out_dtype) for layer in self.layers], dim=-1)

    def rows(self, ids: Tensor) -> Tensor:
        raise NotImplementedError


@pytest.mark.parametrize("name", GEMMAS)
def test_a_prefill_is_byte_identical_to_the_eager_path_of_transformers(name: str) -> None:
    reference = TINY[name]()
    reference.set_attn_implementation("eager")
    reference.set_experts_implementation("eager")
    weights = Unfused(DictSource(dict(reference.state_dict())), torch.device("cpu"), torch.float32)
    model = Gemma4(Gemma4Config.from_dict(config_of(reference)), weights)
    ids = torch.randint(0, 512, (37,))
    with torch.no_grad():
        expected = reference(ids[None]).logits[0]

    def attention(window: int | None, table: Tensor) -> Attention:
        return EagerAttention(window, table)

    assert torch.equal(logits_of(model, ids, attention), expected)


FORMS = {
    "fields of its own": {"global_head_dim": 32, "num_global_key_value_heads": 1},
    "per layer": {"per_layer_config": {str(i): {"head_dim": 32, "num_key_value_heads": 1} for i in (3, 7)}},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_both_forms_of_the_full_attention_sizes_are_read(form: dict[str, Any]) -> None:
    plain = {name: value for name, value in MOE_GEMMA4.items() if "global" not in name}
    config = Gemma4Config.from_dict({"text_config": {**plain, **form}})
    full, window = config.layer_groups(itemsize=2)
    assert (full.layers, full.num_kv_heads, full.head_dim, full.window) == ((3, 7), 1, 32, None)
    assert (window.layers, window.num_kv_heads, window.head_dim, window.window) == ((0, 1, 2, 4, 5, 6), 2, 16, 8)
    assert config.kinds[FULL].values_are_keys and not config.kinds[SLIDING].values_are_keys


def test_shared_layers_own_no_kv_and_read_the_last_of_their_type() -> None:
    config = Gemma4Config.from_dict(SMALL_GEMMA4)
    assert [group.layers for group in config.layer_groups(itemsize=2)] == [(3,), (0, 1, 2)]
    assert [config.kv_source(layer) for layer in range(8)] == [0, 1, 2, 3, 2, 2, 2, 3]


def test_what_the_config_leaves_out_is_what_transformers_assumes() -> None:
    plain = {name: value for name, value in GEMMA4.items() if name not in ("layer_types", "global_head_dim", "final_logit_softcapping")}
    config = Gemma4Config.from_dict(plain)
    assert config.layer_types == (SLIDING,) * 5 + (FULL, SLIDING, FULL)
    assert config.kinds[FULL].head_dim == 512
    assert config.kinds[FULL].rope == RopeParameters(1e6, proportion=0.25)
    assert config.kinds[SLIDING].rope == RopeParameters(1e4)
    assert (config.num_experts, config.per_layer_size, config.num_kv_shared_layers, config.shared_mlp_factor) == (0, 0, 0, 1)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"hidden_activation": "silu"}, "hidden_activation = 'silu' is not supported for Gemma 4"),
        ({"attention_bias": True}, "attention_bias = True is not supported"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings = False is not supported"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention = 'all' is not supported"),
        ({"layer_types": ["chunked_attention"] * 8}, "layer type = 'chunked_attention' is not supported"),
        ({"rope_parameters": {FULL: {"rope_type": "yarn"}}}, "rope type = 'yarn' is not supported"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers = 5 is not supported"),
        ({"per_layer_config": {"3": {"head_dim": 64}}}, "per_layer_config tells layers of one type apart"),
        ({"enable_moe_block": True}, "config.json has no num_experts"),
    ],
)
def test_what_is_not_built_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        Gemma4Config.from_dict({**GEMMA4, **changes})


def test_a_multimodal_checkpoint_with_leftovers_of_shared_layers_loads() -> None:
    reference = TINY["gemma4-e2b"]()
    tensors = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in reference.state_dict().items()}
    for name in ("vision_tower.patch.weight", "audio_tower.conv.weight", "embed_vision.embedding_projection.weight"):
        tensors[f"model.{name}"] = torch.zeros(1)
    for name in ("k_proj", "v_proj", "k_norm"):
        tensors[f"model.language_model.layers.5.self_attn.{name}.weight"] = torch.zeros(1)
    config = {"architectures": ["Gemma4ForConditionalGeneration"], "hidden_size": 1, "text_config": config_of(reference)}
    model = Gemma4(Gemma4Config.from_dict(config), Weights(DictSource(tensors), torch.device("cpu"), torch.float32))
    ids = torch.arange(9)
    assert logits_of(model, ids).equal(logits_of(build(reference), ids))


def test_a_table_in_the_hosts_memory_gives_the_same_logits() -> None:
    reference = TINY["gemma4-e2b"]()
    kept: list[Tensor] = []

    def host_table(table: Tensor) -> Callable[[Tensor], Tensor]:
        kept.append(table)
        return lambda ids: table[ids]

    source = DictSource(dict(reference.state_dict()))
    weights = Weights(source, torch.device("cpu"), torch.float32, host_table=host_table)
    model = Gemma4(Gemma4Config.from_dict(config_of(reference)), weights)
    assert [tuple(table.shape) for table in kept] == [(512, 8 * 8)]
    ids = torch.arange(9)
    assert logits_of(model, ids).equal(logits_of(build(reference), ids))


@pytest.mark.parametrize("name", ["layers.0.layer_scalar", "embed_tokens_per_layer.weight", "layers.3.self_attn.k_norm.weight"])
def test_a_missing_tensor_stops_the_load(name: str) -> None:
    reference = TINY["gemma4-e2b"]()
    tensors = dict(reference.state_dict())
    del tensors[f"model.{name}"]
    with pytest.raises(ModelLoadError, match=f"no tensor model.{name}"):
        Gemma4(Gemma4Config.from_dict(config_of(reference)), Weights(DictSource(tensors), torch.device("cpu"), torch.float32))
