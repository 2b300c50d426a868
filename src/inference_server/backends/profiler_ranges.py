"""Named ranges that show what the engine's thread was doing in torch's profiler and, on CUDA, in Nsight Systems and its like."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.profiler import record_function


def ranges_on(device: str) -> Callable[[str], AbstractContextManager[object]]:
    """What opens a named range on a model's device: for torch's profiler while it runs, and on CUDA always for NVTX."""
    return _with_nvtx if device.startswith("cuda") else _for_torch


def _for_torch(name: str) -> AbstractContextManager[object]:
    """`record_function` would take its 8 us even when nobody profiles."""
    return record_function(name) if torch.autograd._profiler_enabled() else nullcontext()  # type: ignore[attr-defined]


@contextmanager
def _with_nvtx(name: str) -> Iterator[None]:
    torch.cuda.nvtx.range_push(name)
    try:
        with _for_torch(name):
            yield
    finally:
        torch.cuda.nvtx.range_pop()
