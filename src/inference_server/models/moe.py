"""Sparse experts: many gated MLPs of one size, of which each token takes a few. How a token chooses is its family's business."""

import torch
from torch import Tensor

from inference_server.kernels.ops import Activation
from inference_server.models.weights import Weights


class Experts:
    """The experts of one layer, stacked: gate and up [experts, 2 * size, hidden_size], down [experts, hidden_size, size]."""

    def __init__(self, weights: Weights, num_experts: int, hidden_size: int, size: int, activation: Activation) -> None:
        self.activation = activation
        self.ops = weights.ops
        if "0.down_proj.weight" in weights:
            self.gate_up, self.down = _stack(weights, num_experts, hidden_size, size)
        else:
            self.gate_up = weights.take("gate_up_proj", num_experts, 2 * size, hidden_size)
            self.down = weights.take("down_proj", num_experts, hidden_size, size)

    def __call__(self, x: Tensor, expert_ids: Tensor, expert_weights: Tensor) -> Tensor:
        """x [tokens, hidden_size]; expert_ids, expert_weights [tokens, top_k], as `route` returns them. The weighted sums, as x."""
        return self.ops.moe_experts(x, self.gate_up, self.down, expert_ids, expert_weights, self.activation)


def _stack(weights: Weights, num_experts: int, hidden_size: int, size: int) -> tuple[Tensor, Tensor]:
    """From a checkpoint that stores every expert as an MLP of its own; copied one at a time, so that no second layer's worth exists."""
    gate_up = torch.empty(num_experts, 2 * size, hidden_size, dtype=weights.dtype, device=weights.device)
    down = torch.empty(num_experts, hidden_size, size, dtype=weights.dtype, device=weights.device)
    for i in range(num_experts):
        expert = weights.at(str(i))
        gate_up[i, :size] = expert.take("gate_proj.weight", size, hidden_size)
        gate_up[i, size:] = expert.take("up_proj.weight", size, hidden_size)
        down[i] = expert.take("down_proj.weight", hidden_size, size)
    return gate_up, down
