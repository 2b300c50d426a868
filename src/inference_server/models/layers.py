"""The layers that families share: rotary angles, attention with normed heads, the gated MLP. Made from weights, called on activations.

A sublayer is handed the residual stream, None before the first, and the output of the sublayer before, which is not added to it yet. It
returns the stream with that output added, and its own output. So the addition and the norms before a product can be computed with it.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from inference_server.kernels.ops import Activation, AddNorm, Epilogue, KVSlots, Ops
from inference_server.models.attention import AttentionMetadata, LayerKV
from inference_server.models.fields import RopeParameters
from inference_server.models.weights import Lookup, Weights

OUTPUT = Epilogue(partial=True)  # of a sublayer: it goes to the addition and the norms before the next


def norm_weight(weights: Weights, name: str, size: int) -> Tensor:
    """fp32 [size], what the normed input is multiplied by, of a checkpoint that stores this factor itself."""
    return weights.take(f"{name}.weight", size, dtype=torch.float32)


def scaled(lookup: Lookup, scale: float, dtype: torch.dtype) -> Lookup:
    """Ids [tokens] to the rows of a lookup, in dtype and times scale."""
    return lambda ids: lookup(ids).to(dtype) * scale


class RotaryAngles:
    """cos and sin of every position, for the frequencies of `RopeParameters` (arXiv:2104.09864)."""

    def __init__(self, head_dim: int, rope: RopeParameters, device: torch.device, ops: Ops) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        frequencies = 1.0 / rope.theta**exponents / rope.factor
        frequencies[int(rope.proportion * head_dim // 2) :] = 0.0
        self.frequencies = frequencies.to(device)
        self.ops = ops

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """positions int64 [tokens] to cos, sin [tokens, head_dim / 2], computed in fp32 and rounded to dtype."""
        return self.ops.rotary_angles(positions, self.frequencies, dtype)


class HeadsConfig(Protocol):
    """What a config says of attention, by the names that config.json has for it."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...


class NormedHeadsAttention:
    """Grouped-query attention, queries and keys normed a head at a time.

    Query, key and value heads lie side by side, so that one operation norms, rotates and stores them. scale: what scores are
    multiplied by. norm: the addition and the norms before it. norm_weight: reads what normed queries and keys are multiplied by.
    """

    def __init__(
        self,
        layer: int,
        config: HeadsConfig,
        scale: float,
        weights: Weights,
        norm: AddNorm,
        norm_weight: Callable[[Weights, str, int], Tensor],
    ) -> None:
        self.layer = layer
        self.scale = scale
        self.norm = norm
        self.ops = weights.ops
        num_heads, num_kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        q_size, kv_size = num_heads * head_dim, num_kv_heads * head_dim
        self.qkv = weights.linear(config.hidden_size, q_proj=q_size, k_proj=kv_size, v_proj=kv_size)
        self.out = weights.linear(q_size, OUTPUT, o_proj=config.hidden_size)
        q_norm, k_norm = (norm_weight(weights, name, head_dim) for name in ("q_norm", "k_norm"))
        self.qk_norm = torch.cat((q_norm.expand(num_heads, -1), k_norm.expand(num_kv_heads, -1)))  # by head
        self.eps = config.rms_norm_eps

    def __call__(
        self, x: Tensor | None, update: Tensor, angles: tuple[Tensor, Tensor], metadata: AttentionMetadata, kv: LayerKV
    ) -> tuple[Tensor, Tensor]:
        x, qkv = self.qkv.after(x, update, self.norm)
        group = metadata.groups[kv.group_of(self.layer)]
        slots = KVSlots(kv.key(self.layer), kv.value(self.layer), group.slot_mapping)
        q = self.ops.norm_rotate_store(qkv, self.qk_norm, self.eps, *angles, slots)
        return x, self.out(group.attention(q, slots.key, slots.value, self.scale).flatten(1))


class GatedMLP:
    """down(activation(gate(x)) * up(x)) (arXiv:2002.05202). norm: the addition and the norms before it."""

    def __init__(self, weights: Weights, hidden_size: int, size: int, activation: Activation, norm: AddNorm) -> None:
        self.norm = norm
        self.gate_up = weights.linear(hidden_size, Epilogue(activation, gated=True), gate_proj=size, up_proj=size)
        self.down = weights.linear(size, OUTPUT, down_proj=hidden_size)

    def __call__(self, x: Tensor | None, update: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.gate_up.after(x, update, self.norm)
        return x, self.down(y)
