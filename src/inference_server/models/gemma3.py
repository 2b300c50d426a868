"""Gemma 3, the text model: config and blocks (arXiv:2503.19786).

Reads top to bottom as the forward runs. Five layers of six attend within a window; norms scale by 1 + weight; queries and keys
are normed a head at a time; input and output embedding are one matrix. Vision towers are skipped at load, not run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inference_server.core.kv_layout import LayerGroup
from inference_server.kernels.ops import Activation, AddNorm, Epilogue
from inference_server.models.attention import FULL, SLIDING, AttentionMetadata, LayerKV
from inference_server.models.fields import ConfigFields, RopeParameters
from inference_server.models.layers import GatedMLP, NormedHeadsAttention, RotaryAngles, scaled
from inference_server.models.weights import Weights

_BUILT = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "attention_bias": (False,),
    "attn_logit_softcapping": (None,),
    "use_bidirectional_attention": (False, None),
    "tie_word_embeddings": (True,),
}


@dataclass(frozen=True, slots=True)
class Gemma3Config:
    """Sizes and constants of one checkpoint. rope: by layer type."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    layer_types: tuple[str, ...]
    sliding_window: int
    query_pre_attn_scalar: float
    rms_norm_eps: float
    max_position_embeddings: int
    final_logit_softcapping: float | None
    rope: Mapping[str, RopeParameters]

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "Gemma3Config":
        """From a parsed config.json, the text part of a multimodal one included. Raises ModelLoadError for what is not built."""
        fields = ConfigFields(config, "Gemma 3")
        fields.check(_BUILT)
        return cls(
            vocab_size=fields.get("vocab_size", 262208),
            hidden_size=fields["hidden_size"],
            intermediate_size=fields["intermediate_size"],
            num_attention_heads=fields.get("num_attention_heads", 8),
            num_key_value_heads=fields.get("num_key_value_heads", 4),
            head_dim=fields.get("head_dim", 256),
            layer_types=_layer_types(fields),
            sliding_window=fields.get("sliding_window", 4096),
            query_pre_attn_scalar=fields.get("query_pre_attn_scalar", 256),
            rms_norm_eps=fields.get("rms_norm_eps", 1e-6),
            max_position_embeddings=fields.get("max_position_embeddings", 131072),
            final_logit_softcapping=fields.get("final_logit_softcapping"),
            rope={FULL: _rope(fields, FULL, 1e6), SLIDING: _rope(fields, SLIDING, 1e4)},
        )

    def layer_groups(self, itemsize: int) -> tuple[LayerGroup, ...]:
        """The KV groups, full attention first; a type without layers has none."""
        groups = []
        for layer_type, window in ((FULL, None), (SLIDING, self.sliding_window)):
            if layers := tuple(i for i, t in enumerate(self.layer_types) if t == layer_type):
                groups.append(LayerGroup(layers, self.num_key_value_heads, self.head_dim, itemsize, window))
        return tuple(groups)


class Gemma3:
    """The model: token ids to hidden states, hidden states to logits."""

    drops_unsampled = False

    def __init__(self, config: Gemma3Config, weights: Weights) -> None:
        self.config = config
        self.dtype = weights.activation_dtype
        self.ops = weights.ops
        text = weights.text()
        lm_head = Epilogue(softcap=config.final_logit_softcapping, out_dtype=torch.float32)
        self.embedding = text.linear(config.hidden_size, lm_head, embed_tokens=config.vocab_size)  # for look-ups and products
        scale = torch.tensor(config.hidden_size**0.5, dtype=weights.dtype).item()
        self.embed = self.ops.fused(scaled(self.embedding.rows, scale, self.dtype))
        names = [f"layers.{i}" for i in range(len(config.layer_types))]
        ends = [None, *(f"{name}.post_feedforward_layernorm" for name in names)]
        starts = [*(f"{name}.input_layernorm" for name in names), "norm"]
        *norms, self.last_norm = (_add_norm(text, end, start, config) for end, start in zip(ends, starts, strict=True))
        self.layers = [Block(config, i, text.at(names[i]), norm) for i, norm in enumerate(norms)]
        self.rotary = {t: RotaryAngles(config.head_dim, config.rope[t], weights.device, self.ops) for t in set(config.layer_types)}
        weights.skip("lm_head", "language_model.lm_head")
        weights.check_all_taken()

    def forward(self, input_ids: Tensor, positions: Tensor, metadata: AttentionMetadata, kv: LayerKV) -> Tensor:
        """input_ids, positions: int64 [tokens], the rows of `metadata` one after the other. Returns hidden [tokens, hidden_size]."""
        x, update = None, self.embed(input_ids)
        angles = {layer_type: rotary(positions, self.dtype) for layer_type, rotary in self.rotary.items()}
        for layer in self.layers:
            x, update = layer(x, update, angles[layer.layer_type], metadata, kv)
        return self.ops.add_norm(x, update, self.last_norm)[1]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden [rows, hidden_size], of the tokens to sample after, to fp32 logits [rows, vocab_size]."""
        return self.embedding(hidden)

    def likeliest(self, hidden: Tensor) -> Tensor:
        """The ids, int64 [rows], of the highest logit of each row."""
        return self.embedding.highest(hidden)


class Block:
    """Attention, then MLP; each between two norms and added to the residual stream. norm: what lies between the last block and this one."""

    def __init__(self, config: Gemma3Config, layer: int, weights: Weights, norm: AddNorm) -> None:
        self.layer_type = config.layer_types[layer]
        scale = config.query_pre_attn_scalar**-0.5
        self.attention = NormedHeadsAttention(layer, config, scale, weights.at("self_attn"), norm, _norm_weight)
        between = _add_norm(weights, "post_attention_layernorm", "pre_feedforward_layernorm", config)
        self.mlp = GatedMLP(weights.at("mlp"), config.hidden_size, config.intermediate_size, Activation.GELU_TANH, between)

    def __call__(
        self, x: Tensor | None, update: Tensor, angles: tuple[Tensor, Tensor], metadata: AttentionMetadata, kv: LayerKV
    ) -> tuple[Tensor, Tensor]:
        x, update = self.attention(x, update, angles, metadata, kv)
        return self.mlp(x, update)


def _norm_weight(weights: Weights, name: str, size: int) -> Tensor:
    """The weight of a norm, which Gemma 3 stores less one."""
    return 1.0 + weights.take(f"{name}.weight", size, dtype=torch.float32)


def _add_norm(weights: Weights, end: str | None, start: str, config: Gemma3Config) -> AddNorm:
    """What lies between two sublayers: the norm after one, if there is any, the addition, and the norm before the next."""
    post = _norm_weight(weights, end, config.hidden_size) if end else None
    return AddNorm(post, _norm_weight(weights, start, config.hidden_size), config.rms_norm_eps)


def _layer_types(fields: ConfigFields) -> tuple[str, ...]:
    if types := fields.get("layer_types"):
        if unknown := set(types) - {FULL, SLIDING}:
            raise fields.refusal("layer type", min(unknown))
        return tuple(types)
    pattern = fields.get("sliding_window_pattern", 6)
    return tuple(SLIDING if (i + 1) % pattern else FULL for i in range(fields["num_hidden_layers"]))


def _rope(fields: ConfigFields, layer_type: str, default_theta: float) -> RopeParameters:
    """The rope of a layer type: from `rope_parameters`, or from the older flat fields, whose scaling is for full layers."""
    old_theta = "rope_theta" if layer_type == FULL else "rope_local_base_freq"
    scaling = fields.get("rope_scaling") if layer_type == FULL else None
    parameters = (fields.get("rope_parameters") or {}).get(layer_type) or scaling or {}
    return RopeParameters.from_fields(parameters, fields.get(old_theta, default_theta), fields)
