"""The small layers that every family shares: norms, rotary angles, gated MLP. Each is made from its weights and called on activations."""

import torch
from torch import Tensor

from inference_server.kernels.ops import Activation, Ops
from inference_server.models.fields import RopeParameters
from inference_server.models.weights import Weights


class RMSNorm:
    """weight: the factor the normed input is multiplied by, held in fp32."""

    def __init__(self, weight: Tensor, eps: float, ops: Ops) -> None:
        self.weight = weight
        self.eps = eps
        self._ops = ops

    @classmethod
    def load(cls, weights: Weights, name: str, size: int, eps: float) -> "RMSNorm":
        """The norm of a checkpoint that stores the factor itself."""
        return cls(weights.take(f"{name}.weight", size, dtype=torch.float32), eps, weights.ops)

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.rms_norm(x, self.weight, self.eps)


class AddNorm:
    """The end of a sublayer: its output, normed, joins the residual stream, and the next sublayer's norm of that is taken at once.

    Returns the stream and what the next sublayer reads, the stream itself where that has no norm.
    """

    def __init__(self, norm: RMSNorm, next_norm: RMSNorm | None, ops: Ops, scale: float = 1.0) -> None:
        self._weight, self._eps = norm.weight, norm.eps
        self._next_weight = next_norm.weight if next_norm else None
        self._scale = scale  # of the stream
        self._ops = ops

    def __call__(self, residual: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._ops.add_rms_norm(residual, x, self._weight, self._next_weight, self._eps, self._scale)


class RotaryAngles:
    """cos and sin of every position, for the frequencies of `RopeParameters` (arXiv:2104.09864)."""

    def __init__(self, head_dim: int, rope: RopeParameters, device: torch.device) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        frequencies = 1.0 / rope.theta**exponents / rope.factor
        frequencies[int(rope.proportion * head_dim // 2) :] = 0.0
        self.inverse_frequencies = frequencies.to(device)

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """positions int64 [tokens] to cos, sin [tokens, head_dim / 2], computed in fp32 and rounded to dtype."""
        angles = positions.float().unsqueeze(1) * self.inverse_frequencies
        return angles.cos().to(dtype), angles.sin().to(dtype)


class GatedMLP:
    """down(activation(gate(x)) * up(x)) (arXiv:2002.05202)."""

    def __init__(self, weights: Weights, hidden_size: int, size: int, activation: Activation) -> None:
        self.gate_up = weights.linear(hidden_size, gate_proj=size, up_proj=size)
        self.down = weights.linear(size, down_proj=hidden_size)
        self.activation = activation
        self.ops = weights.ops

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.ops.gated(self.gate_up(x), self.activation))


def soft_cap(logits: Tensor, cap: float | None) -> Tensor:
    """Logits squeezed into (-cap, cap); their order stays. None leaves them alone."""
    return logits if cap is None else cap * torch.tanh(logits / cap)
