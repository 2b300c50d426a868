"""`compiled`: a function of a tensor as torch.compile makes it, for the little that our own kernels leave to PyTorch.

Only such functions go through the compiler, never a forward: our kernels are launched as they always are. Importing this needs no Triton,
and costs nothing until something is compiled.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from inference_server.kernels.ops import TokenMap

_OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {
    "emulate_precision_casts": True,  # what is not written between two operations is rounded as if it were
    "compile_threads": 1,  # in this thread: a server starts no processes for a few small kernels
    "triton.autotune_pointwise": False,  # it would run, and take memory, while that of the largest step is measured
}


def compiled(function: TokenMap, backend: str | Callable[..., Any] = "inductor") -> TokenMap:
    """See `reference.fused`. It is compiled twice, at the first call with one token and the first with several, whole or not at all."""
    fused = torch.compile(function, fullgraph=True, backend=backend, options=_OPTIONS)

    def call(tokens: Tensor) -> Tensor:
        if len(tokens) > 1:  # to the compiler a size of 1 is a constant whatever one says
            torch._dynamo.mark_dynamic(tokens, 0)
        return fused(tokens)

    return call
