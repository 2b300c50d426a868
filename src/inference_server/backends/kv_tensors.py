"""`KVTensors`: the KV arena as a tensor, and each layer's keys and values as views of it.

One byte tensor holds every layer of every group (`core.kv_layout` says how it is cut up). Which block belongs to whom is the
cache's business; this file only knows where a block lies.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference_server.core.kv_layout import KVLayout
from inference_server.core.plan import BlockCopy


class KVTensors:
    """Keys and values of all layers. A block of a group is [layers of the group, 2, block_size, num_kv_heads, head_dim].

    Fresh blocks read as zeros. On the CPU the pages of the arena are committed when they are first written.
    """

    def __init__(self, layout: KVLayout, dtype: torch.dtype, device: torch.device | str) -> None:
        if any(group.itemsize != dtype.itemsize for group in layout.groups):
            raise ValueError(f"the layout's element size is not that of {dtype}")
        self.layout = layout
        self.dtype = dtype
        self.arena = _zero_bytes(layout.arena_bytes, torch.device(device))
        self._blocks: list[Tensor] = []  # by group: [num_blocks, layers, 2, block_size, num_kv_heads, head_dim]
        self._layers: dict[int, tuple[int, Tensor, Tensor]] = {}  # layer: (group, keys, values)
        for g, group in enumerate(layout.groups):
            shape = (layout.num_blocks(g), len(group.layers), 2, layout.block_size, group.num_kv_heads, group.head_dim)
            blocks = self.arena.view(dtype).view(shape)
            self._blocks.append(blocks)
            self._layers.update({layer: (g, blocks[:, i, 0], blocks[:, i, 1]) for i, layer in enumerate(group.layers)})

    def group_of(self, layer: int) -> int:
        """The group whose block table serves the layer. KeyError for a layer that owns no KV."""
        return self._layers[layer][0]

    def key(self, layer: int) -> Tensor:
        """[num_blocks, block_size, num_kv_heads, head_dim], writable; the stride between blocks spans all layers of the group."""
        return self._layers[layer][1]

    def value(self, layer: int) -> Tensor:
        """As `key`."""
        return self._layers[layer][2]

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks, all layers of the group, in order: a later copy may reuse an earlier one's source or target."""
        for group, src, dst in copies:
            self._blocks[group][dst].copy_(self._blocks[group][src])


def _zero_bytes(size: int, device: torch.device) -> Tensor:
    """uint8 [size]. numpy's zeros are the operating system's, without memory behind them; torch's are written at once."""
    if device.type == "cpu":
        return torch.from_numpy(np.zeros(size, dtype=np.uint8))
    return torch.zeros(size, dtype=torch.uint8, device=device)
