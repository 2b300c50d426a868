"""The small layers that every family shares: norm, rotary angles, gated MLP. Each is made from its weights and called on activations."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from inference_server.kernels.reference import rms_norm
from inference_server.models.fields import RopeParameters
from inference_server.models.weights import Weights

Activation = Callable[[Tensor], Tensor]


class RMSNorm:
    """weight: the factor the normed input is multiplied by, held in fp32."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    @classmethod
    def load(cls, weights: Weights, name: str, size: int, eps: float) -> "RMSNorm":
        """The norm of a checkpoint that stores the factor itself."""
        return cls(weights.take(f"{name}.weight", size, dtype=torch.float32), eps)

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


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

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.activation(gate) * up)


def gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def soft_cap(logits: Tensor, cap: float | None) -> Tensor:
    """Logits squeezed into (-cap, cap); their order stays. None leaves them alone."""
    return logits if cap is None else cap * torch.tanh(logits / cap)
