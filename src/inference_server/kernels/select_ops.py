"""Which operations serve on this machine: asked once, when a model is loaded."""

import logging
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor

from inference_server.core.errors import ModelLoadError
from inference_server.kernels import reference
from inference_server.kernels.cpu.ops import compile_cpu_ops
from inference_server.kernels.gpu.compiled import compiled
from inference_server.kernels.ops import Ops

logger = logging.getLogger(__name__)


def select_ops(device: torch.device, dtype: torch.dtype, torch_compile: bool = False) -> Ops:
    """dtype: of the weights and the KV cache. torch_compile: compile what our kernels leave to PyTorch.

    Raises ModelLoadError for torch_compile where CUDA or Triton is missing.
    """
    if device.type == "cuda" and find_spec("triton"):
        from inference_server.kernels.gpu.ops import TritonOps

        return TritonOps(dtype, compiled) if torch_compile else TritonOps(dtype)
    if torch_compile:
        raise ModelLoadError(f"CUSTOM_BACKEND_COMPILE needs CUDA and Triton, and this is {device}")
    cpu_ops = compile_cpu_ops() if device.type == "cpu" and dtype == torch.bfloat16 else None
    return cpu_ops or reference


def select_host_table(device: torch.device) -> Callable[[Tensor], Callable[[Tensor], Tensor]] | None:
    """What makes a lookup of a table that stays in the host's memory; None where the device computes in that memory anyway.

    Raises ModelLoadError where Triton is missing.
    """
    if device.type != "cuda":
        logger.info("PLE_OFFLOAD changes nothing on %s, which computes in the host's memory", device)
        return None
    if not find_spec("triton"):
        raise ModelLoadError("PLE_OFFLOAD needs Triton, which is not installed")
    from inference_server.kernels.gpu.host_table import HostTable

    return partial(HostTable, device=device)
