"""The small layers that every family shares: norms and rotary angles. Each is made from its weights and called on activations."""

import torch
from torch import Tensor

from inference_server.kernels.ops import Ops


class RMSNorm:
    """weight: the factor the normed input is multiplied by, held in fp32."""

    def __init__(self, weight: Tensor, eps: float, ops: Ops) -> None:
        self.weight = weight
        self.eps = eps
        self._ops = ops

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
    """cos and sin of every position, for inverse frequencies theta^(-2j / head_dim) / factor (arXiv:2104.09864)."""

    def __init__(self, head_dim: int, theta: float, factor: float, device: torch.device) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        self.inverse_frequencies = (1.0 / theta**exponents / factor).to(device)

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """positions int64 [tokens] to cos, sin [tokens, head_dim / 2], computed in fp32 and rounded to dtype."""
        angles = positions.float().unsqueeze(1) * self.inverse_frequencies
        return angles.cos().to(dtype), angles.sin().to(dtype)
