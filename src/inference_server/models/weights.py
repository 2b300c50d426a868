"""`Weights`: what a model's constructor takes its tensors from, by checkpoint name.

Taking states the shape, so a missing or misshapen tensor stops the load at once, and what nobody took stops it at the end.
One tensor at a time is moved to the device; nothing is allocated twice.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from inference_server.core.errors import ModelLoadError


class TensorSource(Protocol):
    """A checkpoint, or a stand-in for one."""

    def names(self) -> list[str]: ...

    def tensor(self, name: str) -> Tensor: ...


class Weights:
    """A checkpoint seen from one of its name prefixes. All tensors come on `device`, in `dtype` unless another is asked for."""

    def __init__(self, source: TensorSource, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self._source = source
        self._prefix = ""
        self._names = frozenset(source.names())
        self._taken: dict[str, int] = {}  # elements by name; shared by all views of the checkpoint

    def at(self, prefix: str) -> "Weights":
        """The same checkpoint, for names below `prefix`."""
        view = object.__new__(Weights)
        view.device, view.dtype, view._source = self.device, self.dtype, self._source
        view._prefix, view._names, view._taken = f"{self._prefix}{prefix}.", self._names, self._taken
        return view

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._names

    @property
    def num_parameters(self) -> int:
        """Elements taken so far, by all views."""
        return sum(self._taken.values())

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor of this name. Raises ModelLoadError unless it exists and has exactly this shape."""
        return self._read(name, shape).to(device=self.device, dtype=dtype or self.dtype)

    def take_rows(self, parts: Sequence[tuple[str, int]], columns: int) -> Tensor:
        """Matrices of (name, rows) stacked into one [sum of rows, columns], for projections that share their input."""
        return torch.cat([self.take(name, rows, columns) for name, rows in parts])

    def check_all_taken(self, ignored: Iterable[str]) -> None:
        """Raises ModelLoadError if the checkpoint holds a tensor that nobody took and no prefix in `ignored` covers."""
        skipped = tuple(ignored)
        if unused := sorted(name for name in self._names - self._taken.keys() if not name.startswith(skipped)):
            raise ModelLoadError(f"the checkpoint has {len(unused)} tensors that this model does not use, such as {unused[0]}")

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        full_name = self._prefix + name
        if full_name not in self._names:
            raise ModelLoadError(f"the checkpoint has no tensor {full_name}")
        tensor = self._source.tensor(full_name)
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(f"tensor {full_name} has the shape {tuple(tensor.shape)}, not {shape}")
        self._taken[full_name] = tensor.numel()
        return tensor
