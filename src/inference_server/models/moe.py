"""Sparse experts: many gated MLPs of one size, of which each token takes a few. How a token chooses is its family's business."""

import torch
from torch import Tensor

from inference_server.kernels.ops import Activation, Epilogue, Experts
from inference_server.models.weights import Weights

SCORES = Epilogue(out_dtype=torch.float32, partial=True)  # of a router: they go to `route`


def load_experts(weights: Weights, num_experts: int, hidden_size: int, size: int, activation: Activation) -> Experts:
    """The experts of one layer, `size` wide, from a checkpoint that has them stacked or one by one."""
    if "0.down_proj.weight" in weights:
        gate_up, down = _stack(weights, num_experts, hidden_size, size)
    else:
        gate_up = weights.take("gate_up_proj", num_experts, 2 * size, hidden_size)
        down = weights.take("down_proj", num_experts, hidden_size, size)
    return weights.ops.experts(gate_up, down, activation)


def _stack(weights: Weights, num_experts: int, hidden_size: int, size: int) -> tuple[Tensor, Tensor]:
    """From a checkpoint that stores every expert as an MLP of its own."""
    gate_up = torch.empty(num_experts, 2 * size, hidden_size, dtype=weights.dtype, device=weights.device)
    down = torch.empty(num_experts, hidden_size, size, dtype=weights.dtype, device=weights.device)
    for i in range(num_experts):
        expert = weights.at(str(i))
        expert.read("gate_proj.weight", gate_up[i, :size])
        expert.read("up_proj.weight", gate_up[i, size:])
        expert.read("down_proj.weight", down[i])
    return gate_up, down
