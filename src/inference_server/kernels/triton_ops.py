"""The operations of a forward on CUDA: attention in Triton, everything else by PyTorch. An `Ops`, like `reference`: the module.

Importing this needs Triton.
"""

from torch import Tensor

from inference_server.kernels.ops import Attention
from inference_server.kernels.reference import MassAttention, add_rms_norm, gated, linear, norm_rotate_store, rms_norm
from inference_server.kernels.step_rows import StepRows
from inference_server.kernels.triton_attention import TritonAttention

__all__ = ["add_rms_norm", "bind_attention", "gated", "linear", "norm_rotate_store", "rms_norm"]


def bind_attention(
    block_tables: Tensor, rows: StepRows, window: int | None, block_size: int, block_mass: Tensor | None = None
) -> Attention:
    """As `reference.bind_attention`; the kernels see the block size in the cache. Mass is added by PyTorch, which no graph captures."""
    attention = TritonAttention(block_tables, rows.cu_seqlens_q, rows.seq_lens, window, rows.num_single, max_seq_len=max(rows.lengths))
    return attention if block_mass is None else MassAttention(attention, block_tables, rows, window, block_size, block_mass)
