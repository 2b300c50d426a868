"""`TritonAttention`: one step's attention on a GPU, as `reference.PagedAttention` is on other devices.

It holds the step's metadata on the device and launches the kernel for rows of one token, the kernel for longer rows, or both. Nothing
is read back. Importing this needs Triton.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from inference_server.kernels.decode_attention import decode_attention
from inference_server.kernels.prefill_attention import prefill_attention


@dataclass(frozen=True, slots=True)
class TritonAttention:
    """The attention of one layer group in one step.

    block_tables, cu_seqlens_q, seq_lens, window: as in `reference.paged_attention`. The first num_single rows have one token each, the
    rest have more. max_seq_len: the largest of seq_lens, or any larger number.
    """

    block_tables: Tensor
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    window: int | None
    num_single: int
    max_seq_len: int

    def __call__(self, q: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """q: [tokens, num_heads, head_dim]. key, value: [num_blocks, block_size, num_kv_heads, head_dim]. Returns a tensor like q."""
        out = torch.empty_like(q)
        step = (self.block_tables, self.cu_seqlens_q, self.seq_lens)
        if self.num_single:
            decode_attention(
                q, key, value, out, *step, num_rows=self.num_single, max_seq_len=self.max_seq_len, scale=scale, window=self.window
            )
        if self.num_single < len(self.seq_lens):
            prefill_attention(q, key, value, out, *step, scale=scale, window=self.window)
        return out
