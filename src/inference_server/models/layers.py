"""The small layers that every family shares: rotary angles and the gated MLP. Each is made from its weights and called on activations.

A sublayer is handed the residual stream, None before the first, and the output of the sublayer before, which has not joined the stream
yet. It returns the stream that this output has joined, and its own output: so the addition and the norms before a product go with it.
"""

import torch
from torch import Tensor

from inference_server.kernels.ops import Activation, AddNorm, Epilogue, Ops
from inference_server.models.fields import RopeParameters
from inference_server.models.weights import Weights

OUTPUT = Epilogue(partial=True)  # of a sublayer: it goes to the addition and the norms before the next


def norm_weight(weights: Weights, name: str, size: int) -> Tensor:
    """Of a checkpoint that stores the factor itself: fp32 [size], what the normed input is multiplied by."""
    return weights.take(f"{name}.weight", size, dtype=torch.float32)


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


class GatedMLP:
    """down(activation(gate(x)) * up(x)) (arXiv:2002.05202). norm: the way in."""

    def __init__(self, weights: Weights, hidden_size: int, size: int, activation: Activation, norm: AddNorm) -> None:
        self.norm = norm
        self.gate_up = weights.linear(hidden_size, Epilogue(activation, gated=True), gate_proj=size, up_proj=size)
        self.down = weights.linear(size, OUTPUT, down_proj=hidden_size)

    def __call__(self, x: Tensor | None, update: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.gate_up.after(x, update, self.norm)
        return x, self.down(y)
