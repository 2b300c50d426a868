"""`TritonAttention`: one step's attention on a GPU, as `PagedAttention` is on other devices.

It holds the step's metadata on the device and launches the kernel for rows of one token, the kernel for longer rows, or both. Nothing
is read back. Importing this needs Triton.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from inference_server.kernels.gpu.decode_attention import decode_attention
from inference_server.kernels.gpu.prefill_attention import prefill_attention
from inference_server.kernels.step_rows import StepRows


@dataclass(frozen=True, slots=True)
class TritonAttention:
    """The attention of one layer group in one step.

    block_tables: int32 [slots, max_blocks]; rows.slots says which line is whose. window: as in `reference.paged_attention`.
    """

    block_tables: Tensor
    rows: StepRows
    window: int | None

    def __call__(self, q: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """q: [tokens, num_heads, head_dim]. key, value: [num_blocks, block_size, num_kv_heads, head_dim]. Returns a tensor like q."""
        out = torch.empty_like(q)
        rows, single = self.rows, self.rows.num_single
        step = (q, key, value, out, self.block_tables, rows.cu_seqlens_q, rows.seq_lens)
        if single:
            longest = max(rows.lengths)
            decode_attention(*step, num_rows=single, max_seq_len=longest, scale=scale, window=self.window, slots=rows.slots)
        if rows.starts[-1] - rows.starts[-2] > 1:  # longer rows come last
            prefill_attention(*step, scale=scale, window=self.window, slots=rows.slots)
        return out
