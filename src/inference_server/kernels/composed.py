"""`ComposedLinear`: a `FusedLinear` made of a plain product and separate operations, for sets that fuse nothing."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from inference_server.kernels.ops import Activation, AddNorm, Epilogue, Linear


def activate(x: Tensor, activation: Activation) -> Tensor:
    return F.silu(x) if activation is Activation.SILU else F.gelu(x, approximate="tanh")


@dataclass(frozen=True, slots=True)
class ComposedLinear:
    """gated, add_norm: as in `kernels.reference`, by the set that this layer belongs to."""

    product: Linear
    epilogue: Epilogue
    gated: Callable[[Tensor, Activation], Tensor]
    add_norm: Callable[[Tensor | None, Tensor, AddNorm], tuple[Tensor, Tensor]]

    def __call__(self, x: Tensor, factor: Tensor | None = None) -> Tensor:
        epilogue = self.epilogue
        y = self.product(x, epilogue.out_dtype)
        if epilogue.activation is not None:
            y = (self.gated if epilogue.gated else activate)(y, epilogue.activation)
        if factor is not None:
            y = y * factor
        if epilogue.softcap is not None:
            y = epilogue.softcap * torch.tanh(y / epilogue.softcap)
        return y

    def after(self, stream: Tensor | None, update: Tensor, norm: AddNorm, factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        stream, normed = self.add_norm(stream, update, norm)
        return stream, self(normed, factor)

    def highest(self, x: Tensor) -> Tensor:
        return self(x).argmax(-1)

    def rows(self, ids: Tensor) -> Tensor:
        return self.product.rows(ids)
