"""The operations of a forward on CUDA: attention and experts in Triton, everything else by PyTorch. An `Ops`, like `reference`: the module.

Importing this needs Triton.
"""

from torch import Tensor

from inference_server.kernels.grouped_experts import moe_experts
from inference_server.kernels.place_tokens import place_tokens
from inference_server.kernels.reference import add_rms_norm, gated, linear, norm_rotate_store, rms_norm
from inference_server.kernels.step_rows import StepRows
from inference_server.kernels.triton_attention import TritonAttention

__all__ = ["add_rms_norm", "bind_attention", "gated", "linear", "moe_experts", "norm_rotate_store", "place_tokens", "rms_norm"]


def bind_attention(block_tables: Tensor, rows: StepRows, window: int | None, block_size: int) -> TritonAttention:
    """As `reference.bind_attention`; the kernels see the block size in the cache."""
    return TritonAttention(block_tables, rows, window)
