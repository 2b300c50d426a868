"""Qwen3, dense and with experts: config, blocks, experts (arXiv:2505.09388).

Reads top to bottom as the forward runs. Every layer attends to everything; queries and keys are normed a head at a time; a layer's
MLP is dense or a set of sparse experts; the output matrix may be the input embedding or one of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from inference_server.core.kv_layout import LayerGroup
from inference_server.kernels.ops import Activation, AddNorm, Epilogue
from inference_server.models.attention import FULL, AttentionMetadata, LayerKV
from inference_server.models.fields import ConfigFields, RopeParameters
from inference_server.models.layers import GatedMLP, NormedHeadsAttention, RotaryAngles, norm_weight
from inference_server.models.moe import SCORES, load_experts
from inference_server.models.weights import Weights

_FLOAT32 = Epilogue(out_dtype=torch.float32)
_BUILT = {"hidden_act": ("silu",), "attention_bias": (False,), "use_sliding_window": (False,)}


@dataclass(frozen=True, slots=True)
class Qwen3Config:
    """Sizes and constants of one checkpoint. expert_layers: those whose MLP is a set of experts; none in a dense model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    expert_layers: frozenset[int]
    num_experts: int
    experts_per_token: int
    expert_size: int
    normalize_expert_weights: bool
    rope: RopeParameters
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "Qwen3Config":
        """From a parsed config.json of either kind. Raises ModelLoadError for what is not built."""
        fields = ConfigFields(config, "Qwen3")
        fields.check(_BUILT)
        if unknown := set(fields.get("layer_types") or ()) - {FULL}:
            raise fields.refusal("layer type", min(unknown))
        num_experts = fields.get("num_local_experts", fields.get("num_experts", 0))  # transformers writes the first now, wrote the other
        return cls(
            vocab_size=fields["vocab_size"],
            hidden_size=fields["hidden_size"],
            intermediate_size=fields["intermediate_size"],
            num_hidden_layers=fields["num_hidden_layers"],
            num_attention_heads=fields["num_attention_heads"],
            num_key_value_heads=fields["num_key_value_heads"],
            head_dim=fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"],
            expert_layers=_expert_layers(fields) if num_experts else frozenset(),
            num_experts=num_experts,
            experts_per_token=fields["num_experts_per_tok"] if num_experts else 0,
            expert_size=fields["moe_intermediate_size"] if num_experts else 0,
            normalize_expert_weights=fields.get("norm_topk_prob", False),
            rope=_rope(fields),
            rms_norm_eps=fields.get("rms_norm_eps", 1e-6),
            max_position_embeddings=fields["max_position_embeddings"],
            tie_word_embeddings=fields.get("tie_word_embeddings", False),
        )

    def layer_groups(self, itemsize: int) -> tuple[LayerGroup, ...]:
        """One KV group: every layer attends to everything."""
        return (LayerGroup(tuple(range(self.num_hidden_layers)), self.num_key_value_heads, self.head_dim, itemsize),)


class Qwen3:
    """The model: token ids to hidden states, hidden states to logits."""

    drops_unsampled = False

    def __init__(self, config: Qwen3Config, weights: Weights) -> None:
        self.config = config
        self.dtype = weights.activation_dtype
        self.ops = weights.ops
        text = weights.text()
        if config.tie_word_embeddings:
            self.lm_head = text.linear(config.hidden_size, _FLOAT32, embed_tokens=config.vocab_size)
            self.embed = self.lm_head.rows
            weights.skip("lm_head")
        else:
            self.lm_head = weights.linear(config.hidden_size, _FLOAT32, lm_head=config.vocab_size)
            self.embed = partial(functional.embedding, weight=text.take("embed_tokens.weight", config.vocab_size, config.hidden_size))
        self.layers = [Block(config, i, text.at(f"layers.{i}")) for i in range(config.num_hidden_layers)]
        self.last_norm = _add_norm(text, "norm", config)
        self.rotary = RotaryAngles(config.head_dim, config.rope, weights.device, self.ops)
        weights.check_all_taken()

    def forward(self, input_ids: Tensor, positions: Tensor, metadata: AttentionMetadata, kv: LayerKV) -> Tensor:
        """input_ids, positions: int64 [tokens], the rows of `metadata` one after the other. Returns hidden [tokens, hidden_size]."""
        x, update = None, self.embed(input_ids).to(self.dtype)
        angles = self.rotary(positions, self.dtype)
        for layer in self.layers:
            x, update = layer(x, update, angles, metadata, kv)
        return self.ops.add_norm(x, update, self.last_norm)[1]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden [rows, hidden_size], of the tokens to sample after, to fp32 logits [rows, vocab_size]."""
        return self.lm_head(hidden)

    def likeliest(self, hidden: Tensor) -> Tensor:
        """The ids [rows] int64 of the highest of these logits."""
        return self.lm_head.highest(hidden)


class Block:
    """Attention, then MLP; each after a norm and added to the residual stream."""

    def __init__(self, config: Qwen3Config, layer: int, weights: Weights) -> None:
        norm = _add_norm(weights, "input_layernorm", config)
        scale = config.head_dim**-0.5
        self.attention = NormedHeadsAttention(layer, config, scale, weights.at("self_attn"), norm, norm_weight)
        norm = _add_norm(weights, "post_attention_layernorm", config)
        self.mlp: SparseMLP | GatedMLP
        if layer in config.expert_layers:
            self.mlp = SparseMLP(config, weights.at("mlp"), norm)
        else:
            self.mlp = GatedMLP(weights.at("mlp"), config.hidden_size, config.intermediate_size, Activation.SILU, norm)

    def __call__(
        self, x: Tensor | None, update: Tensor, angles: tuple[Tensor, Tensor], metadata: AttentionMetadata, kv: LayerKV
    ) -> tuple[Tensor, Tensor]:
        x, update = self.attention(x, update, angles, metadata, kv)
        return self.mlp(x, update)


class SparseMLP:
    """The router, and the experts it chooses from."""

    def __init__(self, config: Qwen3Config, weights: Weights, norm: AddNorm) -> None:
        self.norm = norm
        self.router = weights.unquantized().linear(config.hidden_size, SCORES, gate=config.num_experts)
        self.top_k, self.normalize = config.experts_per_token, config.normalize_expert_weights
        self.experts = load_experts(weights.at("experts"), config.num_experts, config.hidden_size, config.expert_size, Activation.SILU)
        self.ops = weights.ops

    def __call__(self, x: Tensor | None, update: Tensor) -> tuple[Tensor, Tensor]:
        x, normed = self.ops.add_norm(x, update, self.norm)
        return x, self.experts(normed, *self.ops.route(self.router(normed), self.top_k, self.normalize))


def _add_norm(weights: Weights, name: str, config: Qwen3Config) -> AddNorm:
    """The addition and the norm before a sublayer; Qwen3 has no norm after it."""
    return AddNorm(None, norm_weight(weights, name, config.hidden_size), config.rms_norm_eps)


def _expert_layers(fields: ConfigFields) -> frozenset[int]:
    """Every `decoder_sparse_step`-th layer, but for those in `mlp_only_layers`."""
    step = fields.get("decoder_sparse_step", 1)
    return frozenset(range(step - 1, fields["num_hidden_layers"], step)) - set(fields.get("mlp_only_layers") or ())


def _rope(fields: ConfigFields) -> RopeParameters:
    parameters = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    return RopeParameters.from_fields(parameters, fields.get("rope_theta", 1e4), fields)
