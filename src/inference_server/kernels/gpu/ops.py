"""`TritonOps`: the operations of a forward on CUDA, in Triton and by the library's products. Importing this needs Triton.

Nothing here waits for the device, and what is launched depends on nothing but shapes, so a forward can be captured in a graph.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from inference_server.kernels import reference
from inference_server.kernels.gpu.attention import TritonAttention
from inference_server.kernels.gpu.attention_mass import TritonMassAttention
from inference_server.kernels.gpu.experts import TritonExperts
from inference_server.kernels.gpu.fused_norm import add_norm
from inference_server.kernels.gpu.linear import TritonLinear
from inference_server.kernels.gpu.place_tokens import keep_tokens, place_tokens
from inference_server.kernels.gpu.rope_kv import norm_rotate_store, rotary_angles
from inference_server.kernels.gpu.route import route
from inference_server.kernels.ops import PLAIN, Activation, AddNorm, Attention, Epilogue, TokenMap
from inference_server.kernels.quantize import QuantizedWeight
from inference_server.kernels.step_rows import StepRows


@dataclass(frozen=True, slots=True)
class TritonOps:
    """An `Ops` (see there and `kernels.reference`). dtype: of weights and activations. fused: `compiled`, if a compiler is to be used."""

    dtype: torch.dtype
    fused: Callable[[TokenMap], TokenMap] = reference.fused

    place_tokens = staticmethod(place_tokens)
    keep_tokens = staticmethod(keep_tokens)
    route = staticmethod(route)
    norm_rotate_store = staticmethod(norm_rotate_store)
    rotary_angles = staticmethod(rotary_angles)

    def linear(self, weight: Tensor | QuantizedWeight, epilogue: Epilogue = PLAIN) -> TritonLinear:
        if isinstance(weight, QuantizedWeight):
            return TritonLinear(weight.values, epilogue, self.dtype, weight.scales)
        return TritonLinear(weight.contiguous(), epilogue, self.dtype)

    def experts(self, gate_up: Tensor, down: Tensor, activation: Activation) -> TritonExperts:
        return TritonExperts(gate_up.contiguous(), down.contiguous(), activation)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return add_norm(None, x, AddNorm(None, weight, eps))[1]

    def add_norm(self, stream: Tensor | None, update: Tensor, norm: AddNorm) -> tuple[Tensor, Tensor]:
        return add_norm(stream, update, norm, self.dtype)

    def bind_attention(
        self, block_tables: Tensor, rows: StepRows, window: int | None, block_size: int, block_mass: Tensor | None = None
    ) -> Attention:
        """As `reference.bind_attention`; the kernels take the block size from the cache. Mass is only for layers without a window."""
        attention = TritonAttention(block_tables, rows, window)
        return attention if block_mass is None else TritonMassAttention(attention, block_mass)
