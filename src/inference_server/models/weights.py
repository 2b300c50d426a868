"""`Weights`: what a model's constructor takes its tensors from, by checkpoint name.

Taking a tensor states its shape, so a missing or misshapen one stops the load at once, and one that nobody took stops it at the end.
A tensor is read straight into the place it will keep, on the device and in its dtype. Matrices come as linear layers, made by
the set of operations chosen for this machine.
"""

import logging
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from inference_server.core.errors import ModelLoadError
from inference_server.kernels import reference
from inference_server.kernels.ops import PLAIN, Epilogue, FusedLinear, Ops
from inference_server.kernels.quantize import quantize_weight

_TEXT_PREFIXES = ("model.language_model", "language_model.model", "model")
_OTHER_MODALITIES = ("vision_tower", "audio_tower", "multi_modal_projector", "embed_vision", "embed_audio", "vision_embedder")

logger = logging.getLogger(__name__)


Lookup = Callable[[Tensor], Tensor]
"""Ids [tokens] to rows [tokens, width]."""


class TensorSource(Protocol):
    """A checkpoint, or a stand-in for one."""

    def names(self) -> list[str]: ...

    def copy(self, name: str, out: Tensor) -> None:
        """Fill `out`, which is contiguous, converting to its dtype. Raises ModelLoadError unless there is such a tensor of out's shape."""
        ...

    def close(self) -> None: ...


class RandomTensors:
    """A `TensorSource` that has whatever is asked for, to measure without weights: small random values, and ones for single numbers."""

    def names(self) -> list[str]:
        return []

    def copy(self, name: str, out: Tensor) -> None:
        if out.numel() == 1:
            out.fill_(1.0)
        else:
            out.normal_(std=0.02)

    def close(self) -> None: ...


class Weights:
    """A checkpoint seen from one of its name prefixes. All tensors come on `device`, in `dtype` unless another is asked for.

    ops: the operations for this device, which the model takes from here too. host_table: makes a lookup for ids on the device of a
    table that stays in the host's memory; None keeps tables on the device too. quantize: turn each linear layer to int8 as it is read.
    """

    def __init__(
        self,
        source: TensorSource,
        device: torch.device,
        dtype: torch.dtype,
        ops: Ops = reference,
        host_table: Callable[[Tensor], Lookup] | None = None,
        quantize: bool = False,
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.ops = ops
        self._host_table = host_table
        self._quantize = quantize
        self._source = source
        self._prefix = ""
        self._names = frozenset(source.names())
        self._taken: dict[str, int] = {}  # elements by name; shared by all views of the checkpoint
        self._skipped: list[str] = []  # prefixes; shared as well

    def at(self, prefix: str) -> "Weights":
        """The same checkpoint, for names below `prefix`."""
        view = copy(self)
        view._prefix = f"{self._prefix}{prefix}."
        return view

    def text(self) -> "Weights":
        """The view of the language model, which multimodal checkpoints keep deeper than others."""
        return self.at(next((prefix for prefix in _TEXT_PREFIXES if f"{prefix}.embed_tokens.weight" in self), "model"))

    def unquantized(self) -> "Weights":
        """The same view, for layers that stay as they are: routers, where a small error picks another expert."""
        view = copy(self)
        view._quantize = False
        return view

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._names

    @property
    def activation_dtype(self) -> torch.dtype:
        """On the CPU activations stay in fp32: converting them costs more than it saves, and the KV cache rounds anyway."""
        return torch.float32 if self.device.type == "cpu" else self.dtype

    @property
    def num_parameters(self) -> int:
        """Elements taken so far, by all views."""
        return sum(self._taken.values())

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor of this name. Raises ModelLoadError unless it exists and has exactly this shape."""
        out = torch.empty(shape, dtype=dtype or self.dtype, device=self.device)
        self.read(name, out)
        return out

    def read(self, name: str, out: Tensor) -> None:
        """Fill the contiguous `out` with the tensor of this name. Raises ModelLoadError unless it exists and has exactly this shape."""
        self._source.copy(self._prefix + name, out)
        self._taken[self._prefix + name] = out.numel()

    def scalar(self, name: str) -> float:
        """The tensor of this name, a single number rounded to `dtype`, as a number."""
        out = torch.empty(1, dtype=self.dtype)
        self.read(name, out)
        return out.item()

    def linear(self, in_features: int, epilogue: Epilogue = PLAIN, /, **out_features: int) -> FusedLinear:
        """The matrices `name.weight` [out_features, in_features] as one layer, their outputs side by side in the order given."""
        weight = torch.empty(sum(out_features.values()), in_features, dtype=self.dtype, device=self.device)
        for name, rows in zip(out_features, weight.split(list(out_features.values())), strict=True):
            self.read(f"{name}.weight", rows)
        return self.ops.linear(quantize_weight(weight) if self._quantize else weight, epilogue)

    def table(self, name: str, rows: int, width: int) -> Lookup:
        """A lookup of the rows of the matrix of this name, of which nothing else is ever read."""
        if self._host_table is None:
            return partial(functional.embedding, weight=self.take(name, rows, width))
        table = torch.empty(rows, width, dtype=self.dtype)
        self.read(name, table)
        return self._host_table(table)

    def skip(self, *names: str) -> None:
        """Note that tensors below these names, if there are any, are not needed."""
        self._skipped += [f"{self._prefix}{name}." for name in names]

    def check_all_taken(self) -> None:
        """Raises ModelLoadError if the checkpoint holds a tensor of the language model that was neither taken nor skipped."""
        other = tuple(f"{prefix}{name}." for prefix in ("", "model.") for name in _OTHER_MODALITIES)
        left = {name for name in self._names - self._taken.keys() if not name.startswith(tuple(self._skipped))}
        if unused := sorted(name for name in left if not name.startswith(other)):
            raise ModelLoadError(f"the checkpoint has {len(unused)} tensors that this model does not use, such as {unused[0]}")
        if left:
            logger.info("only text is served: skipped %d tensors of vision and audio, such as %s", len(left), min(left))

    def close(self) -> None:
        """Let go of the checkpoint's files."""
        self._source.close()
