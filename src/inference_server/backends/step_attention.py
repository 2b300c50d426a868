"""Which attention the layers of a step call: the Triton kernels on CUDA, the reference elsewhere. It binds them, and knows no kernel."""

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

from inference_server.kernels.reference import PagedAttention
from inference_server.kernels.step_rows import StepRows

Attention = Callable[[Tensor, Tensor, Tensor, float], Tensor]
BindAttention = Callable[[Tensor, StepRows, int | None], Attention]
"""The block tables of a layer group, the rows and the group's window, to what `GroupMetadata.attention` holds."""


def select_attention(device: torch.device, block_size: int) -> BindAttention:
    if device.type != "cuda" or find_spec("triton") is None:
        return lambda tables, rows, window: PagedAttention(tables, rows.starts, rows.lengths, window, block_size)
    from inference_server.kernels.triton_attention import TritonAttention

    return lambda tables, rows, window: TritonAttention(
        tables, rows.cu_seqlens_q, rows.seq_lens, window, rows.num_single, max_seq_len=max(rows.lengths)
    )
