"""Paged attention problems with poisoned free blocks, for the reference and for the kernels that are checked against it."""

import math

import torch
from torch import Tensor

from inference_server.kernels.reference import paged_attention, write_kv


class Case:
    """Rows of (query length, total length) in shuffled blocks of an arena of three layers, whose other slots are NaN.

    Entries of a block table before the window, and after the row's last block, point at free blocks.
    """

    def __init__(
        self,
        rows: list[tuple[int, int]],
        heads: int,
        kv_heads: int,
        window: int | None,
        *,
        head_dim: int = 8,
        block_size: int = 4,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.window, self.rows, self.scale = window, rows, 2.4 / head_dim
        needed = [math.ceil(total / block_size) for _, total in rows]
        shape = (sum(needed) + 3, 3, 2, block_size, kv_heads, head_dim)
        arena = torch.full(shape, float("nan"), dtype=dtype, device=device)
        self.key, self.value = arena[:, 1, 0], arena[:, 1, 1]
        ids = (torch.randperm(sum(needed) + 2, generator=generator) + 1).tolist()
        tables = torch.zeros(len(rows), max(needed), dtype=torch.int32)
        self.q = torch.randn(sum(n for n, _ in rows), heads, head_dim, generator=generator).to(device, dtype)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        for row, (n, total) in enumerate(rows):
            blocks = torch.tensor([ids.pop() for _ in range(needed[row])])
            k, v = (torch.randn(total, kv_heads, head_dim, generator=generator).to(device, dtype) for _ in range(2))
            position = torch.arange(total)
            slots = blocks[position // block_size] * block_size + position % block_size
            write_kv(self.key, self.value, k, v, slots.to(device))
            self.keys.append(k)
            self.values.append(v)
            dropped = 0 if window is None else max(0, total - n - window + 1) // block_size
            tables[row, dropped : len(blocks)] = blocks[dropped:].int()
        self.block_tables = tables.to(device)
        counts = torch.tensor([n for n, _ in rows])
        self.cu_seqlens_q = torch.cat((torch.zeros(1), counts.cumsum(0))).to(device, torch.int32)
        self.seq_lens = torch.tensor([total for _, total in rows], dtype=torch.int32, device=device)

    def reference(self) -> Tensor:
        return paged_attention(self.q, self.key, self.value, self.block_tables, self.cu_seqlens_q, self.seq_lens, self.scale, self.window)
