"""The small layers that every family shares: norm and rotary angles. Each is made from its weights and called on activations."""

import torch
from torch import Tensor

from inference_server.kernels.reference import rms_norm


class RMSNorm:
    """weight: the factor the normed input is multiplied by, held in fp32."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class RotaryAngles:
    """cos and sin of every position, for inverse frequencies theta^(-2j / head_dim) / factor (arXiv:2104.09864)."""

    def __init__(self, head_dim: int, theta: float, factor: float, device: torch.device) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        self.inverse_frequencies = (1.0 / theta**exponents / factor).to(device)

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """positions int64 [tokens] to cos, sin [tokens, head_dim / 2], computed in fp32 and rounded to dtype."""
        angles = positions.float().unsqueeze(1) * self.inverse_frequencies
        return angles.cos().to(dtype), angles.sin().to(dtype)
