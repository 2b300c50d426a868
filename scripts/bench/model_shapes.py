"""Which matrices a released model multiplies by: found by building it without memory, on operations that record their weights."""

import torch
from released_configs import CONFIGS
from torch import Tensor

from inference_server.kernels import reference
from inference_server.kernels.ops import PLAIN, Activation, Epilogue, Experts, FusedLinear
from inference_server.models.registry import find_family
from inference_server.models.weights import RandomTensors, Weights


class ShapeRecorder:
    """The reference operations, which also record the shapes of each linear layer and each set of experts."""

    def __init__(self) -> None:
        self.layers: dict[tuple[int, int, Epilogue], None] = {}
        self.experts_shapes: set[torch.Size] = set()

    def __getattr__(self, name: str) -> object:
        return getattr(reference, name)

    def linear(self, weight: Tensor, epilogue: Epilogue = PLAIN) -> FusedLinear:
        self.layers[weight.shape[0], weight.shape[1], epilogue] = None
        return reference.linear(weight, epilogue)

    def experts(self, gate_up: Tensor, down: Tensor, activation: Activation) -> Experts:
        self.experts_shapes.add(down.shape)
        return reference.experts(gate_up, down, activation)


def shapes_of(model: str) -> ShapeRecorder:
    """Build the model without memory. Returns what it is made of."""
    found = find_family(CONFIGS[model])
    assert found is not None
    recorder = ShapeRecorder()
    weights = Weights(RandomTensors(), torch.device("meta"), torch.bfloat16, recorder)  # type: ignore[arg-type]
    found[1].model(found[1].config_from_dict(CONFIGS[model]), weights)
    return recorder
