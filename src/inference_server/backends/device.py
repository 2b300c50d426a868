"""The machine as the backends see it: which device and dtype, how much memory is free, how many threads, what a failure means."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from inference_server.core.errors import EngineDeadError, InferenceServerError, ModelLoadError, StepFailedError

_CGROUP = Path("/sys/fs/cgroup")
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def select_device(name: str) -> torch.device:
    """The named device, or for "auto" the first there is of CUDA, MPS and CPU. Raises ModelLoadError if it is not there."""
    available: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
        "cpu": lambda: True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, is_there in available.items() if is_there()))
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelLoadError(f"DEVICE {name!r} is not a device") from error
    if not available.get(device.type, lambda: False)():
        raise ModelLoadError(f"DEVICE {name!r} is not available here")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise ModelLoadError(f"DEVICE {name!r} is not available here; CUDA devices, counted from 0: {count}")
    return device


def select_dtype(name: str) -> torch.dtype:
    """The named dtype; "auto" is bfloat16, which Gemma was trained in. Raises ModelLoadError for an unknown name."""
    name = "bfloat16" if name == "auto" else name
    if name not in _DTYPES:
        raise ModelLoadError(f"DTYPE {name!r} is not one of auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


def use_available_cores() -> None:
    """Limit torch to the cores this process may use; in a container it would count the host's."""
    torch.set_num_threads(max(1, min(torch.get_num_threads(), _cpu_quota())))


def free_bytes(device: torch.device) -> int:
    """Memory of the device that can still be allocated."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    return _free_host_bytes()


@contextmanager
def step_errors() -> Iterator[None]:
    """Turn what a step raises into StepFailedError, or into EngineDeadError when the device will not recover."""
    try:
        yield
    except InferenceServerError:
        raise
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise StepFailedError("the device ran out of memory in this step") from error
    except torch.AcceleratorError as error:
        raise EngineDeadError(f"the device failed: {_first_line(error)}") from error
    except Exception as error:
        raise StepFailedError(f"the forward failed: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _cpu_quota() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else min(cores, -(-int(quota) // int(period)))


def _free_host_bytes() -> int:
    """What the host can give without swapping, within the container's limit."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - int(used)))
