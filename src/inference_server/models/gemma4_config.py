"""What config.json says of a Gemma 4: sizes, which layers attend how, and which of them own keys and values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference_server.core.errors import ModelLoadError
from inference_server.core.kv_layout import LayerGroup
from inference_server.models.attention import FULL, SLIDING
from inference_server.models.fields import ConfigFields, RopeParameters

_BUILT = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "attention_bias": (False,),
    "use_bidirectional_attention": (None, "vision"),  # text is causal under both
    "tie_word_embeddings": (True,),
}
_ROPE: Mapping[str, Mapping[str, Any]] = {
    FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
}


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """What the layers of one type have in common. values_are_keys: there is no v_proj, the projected keys are the values too."""

    num_kv_heads: int
    head_dim: int
    window: int | None
    rope: RopeParameters
    values_are_keys: bool


@dataclass(frozen=True, slots=True)
class Gemma4Config:
    """Sizes and constants of one checkpoint; a size of 0 says that the part is not there.

    kinds: by layer type. num_kv_shared_layers: how many layers, the last ones, own no KV; shared_mlp_factor: how much wider their MLP
    is. per_layer_vocab_size: rows of the second embedding table, each of which has a part for every layer; per_layer_size: of such a part.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    layer_types: tuple[str, ...]
    kinds: Mapping[str, AttentionKind]
    num_kv_shared_layers: int
    shared_mlp_factor: int
    per_layer_vocab_size: int
    per_layer_size: int
    num_experts: int
    experts_per_token: int
    expert_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    final_logit_softcapping: float | None

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "Gemma4Config":
        """From a parsed config.json, the text part of a multimodal one included. Raises ModelLoadError for what is not built."""
        fields = ConfigFields(config, "Gemma 4")
        fields.check(_BUILT)
        layer_types = _layer_types(fields)
        num_experts = fields["num_experts"] if fields.get("enable_moe_block") else 0
        parsed = cls(
            vocab_size=fields["vocab_size"],
            hidden_size=fields["hidden_size"],
            intermediate_size=fields["intermediate_size"],
            num_attention_heads=fields["num_attention_heads"],
            layer_types=layer_types,
            kinds=_attention_kinds(fields, layer_types),
            num_kv_shared_layers=fields.get("num_kv_shared_layers", 0),
            shared_mlp_factor=2 if fields.get("use_double_wide_mlp") else 1,
            per_layer_vocab_size=fields.get("vocab_size_per_layer_input", fields["vocab_size"]),
            per_layer_size=fields.get("hidden_size_per_layer_input", 0),
            num_experts=num_experts,
            experts_per_token=fields["top_k_experts"] if num_experts else 0,
            expert_size=fields["moe_intermediate_size"] if num_experts else 0,
            rms_norm_eps=fields.get("rms_norm_eps", 1e-6),
            max_position_embeddings=fields["max_position_embeddings"],
            final_logit_softcapping=fields.get("final_logit_softcapping"),
        )
        if set(layer_types) - set(layer_types[: parsed.num_own_kv_layers]):
            raise fields.refusal("num_kv_shared_layers", parsed.num_kv_shared_layers)
        return parsed

    @property
    def num_own_kv_layers(self) -> int:
        return len(self.layer_types) - self.num_kv_shared_layers

    def kv_source(self, layer: int) -> int:
        """The layer whose keys and values this one attends to: itself, or the last of its type that has any."""
        own = self.num_own_kv_layers
        return layer if layer < own else max(i for i in range(own) if self.layer_types[i] == self.layer_types[layer])

    def layer_groups(self, itemsize: int) -> tuple[LayerGroup, ...]:
        """The KV groups, full attention first, of the layers that own KV; a type without layers has none."""
        groups = []
        for layer_type, kind in self.kinds.items():
            layers = tuple(i for i in range(self.num_own_kv_layers) if self.layer_types[i] == layer_type)
            groups.append(LayerGroup(layers, kind.num_kv_heads, kind.head_dim, itemsize, kind.window))
        return tuple(groups)


def _layer_types(fields: ConfigFields) -> tuple[str, ...]:
    """Every sixth layer is full where the config does not say; the last one always is."""
    types = fields.get("layer_types") or [SLIDING if (i + 1) % 6 else FULL for i in range(fields["num_hidden_layers"])]
    if unknown := set(types) - {FULL, SLIDING}:
        raise fields.refusal("layer type", min(unknown))
    return (*types[:-1], FULL)


def _attention_kinds(fields: ConfigFields, layer_types: tuple[str, ...]) -> dict[str, AttentionKind]:
    """Full attention first, sliding if there is any."""
    keys_only = bool(fields.get("attention_k_eq_v"))
    sizes = {SLIDING: (fields["num_key_value_heads"], fields["head_dim"]), FULL: _full_attention_sizes(fields, layer_types, keys_only)}
    rope_parameters = {**_ROPE, **(fields.get("rope_parameters") or {})}
    return {
        layer_type: AttentionKind(
            *sizes[layer_type],
            window=fields["sliding_window"] if layer_type == SLIDING else None,
            rope=RopeParameters.from_fields(rope_parameters[layer_type], _ROPE[layer_type]["rope_theta"], fields),
            values_are_keys=keys_only and layer_type == FULL,
        )
        for layer_type in (FULL, SLIDING)
        if layer_type in layer_types
    }


def _full_attention_sizes(fields: ConfigFields, layer_types: tuple[str, ...], keys_only: bool) -> tuple[int, int]:
    """(num_kv_heads, head_dim) of full attention: from fields of its own or, as newer transformers writes it, from `per_layer_config`."""
    num_kv_heads, head_dim = fields["num_key_value_heads"], fields["head_dim"]
    if per_layer := fields.get("per_layer_config"):
        found = {
            int(layer): (own.get("num_key_value_heads", num_kv_heads), own.get("head_dim", head_dim)) for layer, own in per_layer.items()
        }
        sizes = {found.get(i, (num_kv_heads, head_dim)) for i, layer_type in enumerate(layer_types) if layer_type == FULL}
        others = {found.get(i, (num_kv_heads, head_dim)) for i, layer_type in enumerate(layer_types) if layer_type == SLIDING}
        if len(sizes) > 1 or others - {(num_kv_heads, head_dim)}:
            raise ModelLoadError("per_layer_config tells layers of one type apart, which is not supported for Gemma 4")
        return sizes.pop()
    own_kv_heads = fields.get("num_global_key_value_heads") if keys_only else None
    return own_kv_heads or num_kv_heads, fields.get("global_head_dim", 512)
