"""Which set of operations serves on this machine: asked once, when a model is loaded."""

from importlib.util import find_spec

import torch

from inference_server.kernels import reference
from inference_server.kernels.cpu_ops import compile_cpu_ops
from inference_server.kernels.ops import Ops


def select_ops(device: torch.device, dtype: torch.dtype) -> Ops:
    """dtype: of the weights and the KV cache."""
    if device.type == "cuda" and find_spec("triton"):
        from inference_server.kernels.triton_ops import TritonOps

        return TritonOps(dtype)
    compiled = compile_cpu_ops() if device.type == "cpu" and dtype == torch.bfloat16 else None
    return compiled or reference
