"""Gemma 4, the text model, in all its sizes: block, attention, MLP, experts (values of the sizes: docs/models.md).

Reads top to bottom as the forward runs. Beside Gemma 3's windows and norms: full attention has heads of its own size and number;
the last layers may own no keys and values and read an earlier layer's; a token may bring an embedding of its own into every layer;
experts may work beside the dense MLP. Vision and audio parts are skipped at load, not run.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from inference_server.kernels.ops import Activation, AddNorm, Epilogue, KVSlots
from inference_server.models.attention import AttentionMetadata, LayerKV
from inference_server.models.gemma4_config import Gemma4Config
from inference_server.models.layers import OUTPUT, GatedMLP, RotaryAngles, norm_weight, scaled
from inference_server.models.moe import SCORES, load_experts
from inference_server.models.weights import Weights


class Gemma4:
    """The model: token ids to hidden states, hidden states to logits."""

    def __init__(self, config: Gemma4Config, weights: Weights) -> None:
        self.config = config
        self.drops_unsampled = config.num_kv_shared_layers > 0
        self.dtype = weights.activation_dtype
        self.ops = weights.ops
        text = weights.text()
        lm_head = Epilogue(softcap=config.final_logit_softcapping, out_dtype=torch.float32)
        self.embedding = text.linear(config.hidden_size, lm_head, embed_tokens=config.vocab_size)  # for look-ups and products
        scale = torch.tensor(config.hidden_size**0.5, dtype=weights.dtype).item()
        self.embed = self.ops.fused(scaled(self.embedding.rows, scale, self.dtype))
        self.per_layer = PerLayerEmbedding(config, text) if config.per_layer_size else None
        *norms, self.last_norm = _joints(config, text)
        self.layers = [Block(config, i, text.at(f"layers.{i}"), norm) for i, norm in enumerate(norms)]
        self.rotary = {name: RotaryAngles(kind.head_dim, kind.rope, weights.device, self.ops) for name, kind in config.kinds.items()}
        weights.skip("lm_head")
        weights.check_all_taken()

    def forward(self, input_ids: Tensor, positions: Tensor, metadata: AttentionMetadata, kv: LayerKV) -> Tensor:
        """input_ids, positions: int64 [tokens], the rows of `metadata` one after the other.

        Returns hidden [tokens, hidden_size], or [sampled, hidden_size] where `metadata` names the tokens that are sampled from.
        """
        x: Tensor | None = None
        update = self.embed(input_ids)
        per_layer = self.per_layer(input_ids, update) if self.per_layer else None
        angles = self._angles(positions)
        for i, layer in enumerate(self.layers):
            if i == self.config.num_own_kv_layers and x is not None and metadata.sampled is not None:
                # Later layers read nothing of the other tokens but keys and values, and these are stored by now.
                indices, metadata = metadata.sampled.indices, metadata.sampled.metadata
                x, update = x.index_select(0, indices), update.index_select(-2, indices)
                if not len(x):
                    return x
                per_layer = None if per_layer is None else per_layer.index_select(0, indices)
                angles = self._angles(positions.index_select(0, indices))
            embedding = None if per_layer is None else per_layer[:, i]
            x, update = layer(x, update, embedding, angles[layer.layer_type], metadata, kv)
        return self.ops.add_norm(x, update, self.last_norm)[1]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden [rows, hidden_size], of the tokens to sample after, to fp32 logits [rows, vocab_size]."""
        return self.embedding(hidden)

    def likeliest(self, hidden: Tensor) -> Tensor:
        """The ids, int64 [rows], of the highest logit of each row."""
        return self.embedding.highest(hidden)

    def _angles(self, positions: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        return {layer_type: rotary(positions, self.dtype) for layer_type, rotary in self.rotary.items()}


class PerLayerEmbedding:
    """A second embedding with a part for every layer: looked up by id, and mixed with a projection of the first."""

    def __init__(self, config: Gemma4Config, weights: Weights) -> None:
        self.size = config.per_layer_size
        width = len(config.layer_types) * self.size
        table = weights.table("embed_tokens_per_layer.weight", config.per_layer_vocab_size, width)
        scale = torch.tensor(self.size**0.5, dtype=weights.dtype).item()
        self.lookup = weights.ops.fused(scaled(table, scale, weights.activation_dtype))
        self.project = weights.linear(config.hidden_size, per_layer_model_projection=width)
        self.projection_scale = config.hidden_size**-0.5
        norm = norm_weight(weights, "per_layer_projection_norm", self.size)
        self.mix = AddNorm(norm, None, config.rms_norm_eps, scale=2**-0.5)
        self.ops = weights.ops

    def __call__(self, input_ids: Tensor, x: Tensor) -> Tensor:
        """input_ids [tokens], x: their scaled embeddings [tokens, hidden_size]. Returns [tokens, layers, size]."""
        from_id = self.lookup(input_ids)  # [tokens, layers * size]
        from_x = self.project(x) * self.projection_scale
        mixed, _ = self.ops.add_norm(from_id.view(-1, self.size), from_x.view(-1, self.size), self.mix)
        return mixed.view(len(input_ids), -1, self.size)


class Block:
    """Attention, MLP and per-layer embedding; each added to the residual stream, which is scaled at the end.

    norm: what lies between the block before and this one.
    """

    def __init__(self, config: Gemma4Config, layer: int, weights: Weights, norm: AddNorm) -> None:
        self.layer_type = config.layer_types[layer]
        self.attention = Attention(config, layer, weights.at("self_attn"), norm)
        factor = 1 if layer < config.num_own_kv_layers else config.shared_mlp_factor
        between = _add_norm(config, weights, "post_attention_layernorm", "pre_feedforward_layernorm")
        mlp_size = factor * config.intermediate_size
        self.mlp = GatedMLP(weights.at("mlp"), config.hidden_size, mlp_size, Activation.GELU_TANH, between)
        self.experts = ParallelExperts(config, weights) if config.num_experts else None
        self.per_layer_input = PerLayerInput(config, weights) if config.per_layer_size else None

    def __call__(
        self,
        x: Tensor | None,
        update: Tensor,
        embedding: Tensor | None,
        angles: tuple[Tensor, Tensor],
        metadata: AttentionMetadata,
        kv: LayerKV,
    ) -> tuple[Tensor, Tensor]:
        x, update = self.attention(x, update, angles, metadata, kv)
        x, update = self.mlp(x, update)
        if self.experts is not None:
            update = self.experts(x, update)
        if self.per_layer_input is not None and embedding is not None:
            x, update = self.per_layer_input(x, update, embedding)
        return x, update


class Attention:
    """Grouped-query attention at scale 1: queries, keys and values are all normed, the values without a weight.

    The heads lie side by side, so that one operation norms all of them, rotates queries and keys, and stores keys and values.
    """

    def __init__(self, config: Gemma4Config, layer: int, weights: Weights, norm: AddNorm) -> None:
        self.norm = norm
        kind = config.kinds[config.layer_types[layer]]
        self.kv_layer = config.kv_source(layer)
        self.owns_kv = self.kv_layer == layer
        self.values_are_keys = kind.values_are_keys and self.owns_kv
        q_size, kv_size = config.num_attention_heads * kind.head_dim, kind.num_kv_heads * kind.head_dim
        by_head = [norm_weight(weights, "q_norm", kind.head_dim).expand(config.num_attention_heads, -1)]
        if self.owns_kv:
            by_head.append(norm_weight(weights, "k_norm", kind.head_dim).expand(kind.num_kv_heads, -1))
            by_head.append(torch.ones_like(by_head[1]))
            kv_proj = {"k_proj": kv_size} if self.values_are_keys else {"k_proj": kv_size, "v_proj": kv_size}
            self.qkv = weights.linear(config.hidden_size, q_proj=q_size, **kv_proj)
        else:
            weights.skip("k_proj", "v_proj", "k_norm", "v_norm")
            self.qkv = weights.linear(config.hidden_size, q_proj=q_size)
        self.head_norm = torch.cat(by_head)  # [heads, head_dim]
        self.eps = config.rms_norm_eps
        self.out = weights.linear(q_size, OUTPUT, o_proj=config.hidden_size)
        self.ops = weights.ops

    def __call__(
        self, x: Tensor | None, update: Tensor, angles: tuple[Tensor, Tensor], metadata: AttentionMetadata, kv: LayerKV
    ) -> tuple[Tensor, Tensor]:
        x, qkv = self.qkv.after(x, update, self.norm)  # only queries if the layer reads another layer's keys and values
        group = metadata.groups[kv.group_of(self.kv_layer)]
        key, value = kv.key(self.kv_layer), kv.value(self.kv_layer)
        slots = KVSlots(key, value, group.slot_mapping) if self.owns_kv else None
        q = self.ops.norm_rotate_store(qkv, self.head_norm, self.eps, *angles, slots, self.values_are_keys)
        return x, self.out(group.attention(q, key, value, 1.0).flatten(1))


class ParallelExperts:
    """Experts beside the dense MLP: they read the residual stream through norms of their own, and the two results are added."""

    def __init__(self, config: Gemma4Config, weights: Weights) -> None:
        hidden_size, router = config.hidden_size, weights.at("router").unquantized()
        norm = partial(norm_weight, weights, size=hidden_size)
        self.eps = config.rms_norm_eps
        self.router_norm = router.take("scale", hidden_size, dtype=torch.float32) * hidden_size**-0.5
        self.router = router.linear(hidden_size, SCORES, proj=config.num_experts)
        self.expert_scale = router.take("per_expert_scale", config.num_experts, dtype=torch.float32)
        self.top_k = config.experts_per_token
        self.norm = norm("pre_feedforward_layernorm_2")
        self.experts = load_experts(weights.at("experts"), config.num_experts, hidden_size, config.expert_size, Activation.GELU_TANH)
        self.after_experts = AddNorm(norm("post_feedforward_layernorm_2"), None, self.eps)
        self.after_mlp = AddNorm(norm("post_feedforward_layernorm_1"), None, self.eps)
        self.ops = weights.ops

    def __call__(self, x: Tensor, mlp: Tensor) -> Tensor:
        """x: the residual stream. mlp: the dense MLP's output. Returns MLP plus experts, each normed. All [tokens, hidden_size]."""
        scores = self.router(self.ops.rms_norm(x, self.router_norm, self.eps))
        expert_ids, weights = self.ops.route(scores, self.top_k, normalize=True, expert_scale=self.expert_scale)
        experts = self.experts(self.ops.rms_norm(x, self.norm, self.eps), expert_ids, weights)
        both, _ = self.ops.add_norm(None, experts, self.after_experts)
        both, _ = self.ops.add_norm(both, mlp, self.after_mlp)
        return both


class PerLayerInput:
    """Lets the residual stream gate the token's embedding for this layer, and brings it to the stream's width."""

    def __init__(self, config: Gemma4Config, weights: Weights) -> None:
        self.norm = AddNorm(norm_weight(weights, "post_feedforward_layernorm", config.hidden_size), None, config.rms_norm_eps)
        self.gate = weights.linear(config.hidden_size, Epilogue(Activation.GELU_TANH), per_layer_input_gate=config.per_layer_size)
        self.project = weights.linear(config.per_layer_size, OUTPUT, per_layer_projection=config.hidden_size)

    def __call__(self, x: Tensor | None, update: Tensor, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """x, update [tokens, hidden_size], embedding [tokens, per_layer_size]."""
        x, gated = self.gate.after(x, update, self.norm, embedding)
        return x, self.project(gated)


def _joints(config: Gemma4Config, weights: Weights) -> Iterator[AddNorm]:
    """What lies before each layer and after the last: the norm that ends one layer, its scalar, and the norm that begins the next."""
    end = "post_per_layer_input_norm" if config.per_layer_size else "post_feedforward_layernorm"
    yield _add_norm(config, weights, None, "layers.0.input_layernorm")
    for i in range(1, len(config.layer_types) + 1):
        name = f"layers.{i - 1}"
        start = f"layers.{i}.input_layernorm" if i < len(config.layer_types) else "norm"
        yield _add_norm(config, weights, f"{name}.{end}", start, weights.scalar(f"{name}.layer_scalar"))


def _add_norm(config: Gemma4Config, weights: Weights, end: str | None, start: str, scale: float = 1.0) -> AddNorm:
    post = norm_weight(weights, end, config.hidden_size) if end else None
    return AddNorm(post, norm_weight(weights, start, config.hidden_size), config.rms_norm_eps, scale)
