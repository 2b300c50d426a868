"""`Ops`: the operations that a forward is made of, on one kind of machine. A model is handed one set when it is loaded.

What each computes, in which shapes, stands in `kernels.reference`, which is a set itself: the module. Other sets are checked against
it. Operations are as large as the families share them, since on few rows it is their number that costs.
"""

from enum import StrEnum
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from inference_server.kernels.quantize import QuantizedWeight
from inference_server.kernels.step_rows import StepRows


class Activation(StrEnum):
    """Of gated MLPs."""

    GELU_TANH = "gelu_tanh"
    SILU = "silu"


class Linear(Protocol):
    """`y = x @ W.T` for a fixed weight `[N, K]`."""

    def __call__(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        """Maps `x` `[M, K]` to `[M, N]` in `out_dtype`, by default that of `x`."""
        ...

    def rows(self, ids: Tensor) -> Tensor:
        """Returns the weight rows `[T, K]` of `ids` `[T]`, of int8 weights in float32: the embedding lookup of a tied output head."""
        ...


class Attention(Protocol):
    """Attention bound to the rows of one step and one layer group."""

    def __call__(self, q: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor: ...


class KVSlots(NamedTuple):
    """Where a layer's new keys and values go.

    key, value: [num_blocks, block_size, num_kv_heads, head_dim], of equal strides, a block's slots side by side.
    slot_mapping: int64 [tokens], block * block_size + offset.
    """

    key: Tensor
    value: Tensor
    slot_mapping: Tensor


class Ops(Protocol):
    """Each method is documented where it is defined, in `kernels.reference`."""

    def linear(self, weight: Tensor | QuantizedWeight) -> Linear: ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def add_rms_norm(
        self, residual: Tensor, x: Tensor, weight: Tensor, next_weight: Tensor | None, eps: float, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]: ...

    def norm_rotate_store(self, qkv: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor, slots: KVSlots | None) -> Tensor: ...

    def bind_attention(self, block_tables: Tensor, rows: StepRows, window: int | None, block_size: int) -> Attention: ...

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor: ...
