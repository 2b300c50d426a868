"""Ranges by which torch's profiler, and on CUDA Nsight Systems and its like, find what the engine's thread was doing."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch.profiler import record_function


def ranges_on(device: str) -> Callable[[str], AbstractContextManager[object]]:
    """What opens a named range on a model's device: `record_function`, and on CUDA an NVTX range too."""
    return _with_nvtx if device.startswith("cuda") else record_function


@contextmanager
def _with_nvtx(name: str) -> Iterator[None]:
    with record_function(name), torch.cuda.nvtx.range(name):
        yield
