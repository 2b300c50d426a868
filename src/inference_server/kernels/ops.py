"""`Ops`: the operations that a forward is made of, on one kind of machine. A model is handed one set when it is loaded.

`kernels.reference` says what each operation computes, in which shapes; that module is a set itself, and the others are checked against
it. On few rows, the number of operations is what costs, so a product includes what surrounds it: the end of the sublayer before it, and
what happens to its result. A set may run all of that in one launch, or one after the other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from inference_server.kernels.quantize import QuantizedWeight
from inference_server.kernels.step_rows import StepRows, TokenPlaces

TokenMap = Callable[[Tensor], Tensor]
"""From a tensor [tokens, ...] to another; what it makes of a token depends on that token alone."""


class Activation(StrEnum):
    """The activation of a gated MLP; gelu by its tanh approximation (arXiv:1606.08415)."""

    GELU_TANH = "gelu_tanh"
    SILU = "silu"


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What happens to x @ W.T before it is stored.

    gated: W is [2 N, K], gates first, and y = activation(gate) * up; else y = activation(x @ W.T), times the factor of the call if it
    has one. softcap: y = softcap * tanh(y / softcap). out_dtype: the dtype of y, by default that of x.
    partial: only an `add_norm` or a `route` reads y, so that y may be left to it as partial sums [parts, M, N], if that is faster.
    """

    activation: Activation | None = None
    gated: bool = False
    softcap: float | None = None
    out_dtype: torch.dtype | None = None
    partial: bool = False


PLAIN = Epilogue()


@dataclass(frozen=True, slots=True)
class AddNorm:
    """What lies between one sublayer and the next: stream = (stream + norm(update) * post) * scale; the next reads norm(stream) * pre.

    post, pre: fp32 [size], or None for no norm there: Gemma norms both sides of a sublayer, other families its input. scale: Gemma 4's
    layer scalar, 1 elsewhere.
    """

    post: Tensor | None
    pre: Tensor | None
    eps: float
    scale: float = 1.0


class Linear(Protocol):
    """`y = x @ W.T` for a fixed weight `[N, K]`."""

    def __call__(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        """Maps `x` `[M, K]` to `[M, N]` in `out_dtype`, by default that of `x`."""
        ...

    def rows(self, ids: Tensor) -> Tensor:
        """The embedding lookup of a tied output head: the weight rows `[T, K]` of `ids` `[T]`. Those of int8 weights are float32, or
        rounded once to the dtype of activations."""
        ...


class FusedLinear(Protocol):
    """A product with what surrounds it, for a fixed weight [N, K] and a fixed epilogue."""

    def __call__(self, x: Tensor, factor: Tensor | None = None) -> Tensor:
        """Maps x [M, K] to the epilogue's [M, N]. factor: [M, N], rows at any stride."""
        ...

    def after(self, stream: Tensor | None, update: Tensor, norm: AddNorm, factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`Ops.add_norm`, then the product of what it normed: (stream [M, K], y [M, N])."""
        ...

    def highest(self, x: Tensor) -> Tensor:
        """The feature, int64 [M], with the highest value in each row of `self(x)`; the first of equals. For logits, the greedy token."""
        ...

    def rows(self, ids: Tensor) -> Tensor:
        """As `Linear.rows`."""
        ...


class Experts(Protocol):
    """The stacked experts of one layer: x [M, hidden_size], expert_ids and weights (fp32) [M, top_k] to their weighted sums.

    Only an `add_norm` reads the result, so that it may be left to it as partial sums [parts, M, hidden_size].
    """

    def __call__(self, x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor: ...


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

    def linear(self, weight: Tensor | QuantizedWeight, epilogue: Epilogue = PLAIN) -> FusedLinear: ...

    def experts(self, gate_up: Tensor, down: Tensor, activation: Activation) -> Experts: ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def add_norm(self, stream: Tensor | None, update: Tensor, norm: AddNorm) -> tuple[Tensor, Tensor]: ...

    def rotary_angles(self, positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]: ...

    def norm_rotate_store(
        self, qkv: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor, slots: KVSlots | None, values_are_keys: bool = False
    ) -> Tensor: ...

    def bind_attention(
        self, block_tables: Tensor, rows: StepRows, window: int | None, block_size: int, block_mass: Tensor | None = None
    ) -> Attention: ...

    def route(self, scores: Tensor, top_k: int, normalize: bool, expert_scale: Tensor | None = None) -> tuple[Tensor, Tensor]: ...

    def place_tokens(
        self, rows: StepRows, known_ids: Tensor, newest_ids: Tensor, block_tables: Tensor, block_size: int, out: TokenPlaces
    ) -> None: ...

    def keep_tokens(self, ids: Tensor, slots: Tensor, newest_ids: Tensor, out: Tensor) -> None: ...

    def fused(self, function: TokenMap) -> TokenMap: ...
