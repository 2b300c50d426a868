"""Runs a hand-written model on plain tensors: no backend, no arena, one prefill of one sequence."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from inference_server.core.errors import ModelLoadError
from inference_server.core.kv_layout import LayerGroup
from inference_server.kernels.reference_attention import PagedAttention
from inference_server.models.attention import AttentionMetadata, GroupMetadata
from inference_server.models.registry import ModelConfig
from inference_server.models.weights import Weights

BLOCK = 4
Attention = Callable[[Tensor, Tensor, Tensor, float], Tensor]


class DictSource:
    """A checkpoint in memory."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors

    def names(self) -> list[str]:
        return list(self.tensors)

    def copy(self, name: str, out: Tensor) -> None:
        if name not in self.tensors:
            raise ModelLoadError(f"no tensor {name}")
        assert out.shape == self.tensors[name].shape
        out.copy_(self.tensors[name])

    def close(self) -> None:
        pass


class PlainKV:
    """Holds each layer's keys and values in a tensor of its own, poisoned until written."""

    def __init__(self, groups: tuple[LayerGroup, ...], num_blocks: int, device: torch.device) -> None:
        self.groups = {layer: g for g, group in enumerate(groups) for layer in group.layers}
        shapes = [(num_blocks, BLOCK, group.num_kv_heads, group.head_dim) for group in groups]
        self.kv = {layer: torch.full((2, *shapes[g]), torch.nan, device=device) for layer, g in self.groups.items()}

    def group_of(self, layer: int) -> int:
        return self.groups[layer]

    def key(self, layer: int) -> Tensor:
        return self.kv[layer][0]

    def value(self, layer: int) -> Tensor:
        return self.kv[layer][1]


def weights_of(reference: nn.Module) -> Weights:
    return Weights(DictSource(dict(reference.state_dict())), torch.device("cpu"), torch.float32)


def logits_of(model: Any, ids: Tensor, attention: Callable[[int | None, Tensor], Attention] | None = None) -> Tensor:
    """All logits of one sequence, from one prefill. attention: from window and block table to the attention; None: the reference's."""
    config: ModelConfig = model.config
    groups, count, device = config.layer_groups(itemsize=4), len(ids), ids.device
    num_blocks = -(-count // BLOCK)
    table = torch.arange(num_blocks, 0, -1, dtype=torch.int32, device=device)[None]
    positions = torch.arange(count, device=device)
    slots = table[0].long().repeat_interleave(BLOCK)[:count] * BLOCK + positions % BLOCK

    def reference(window: int | None, table: Tensor) -> Attention:
        return PagedAttention(table, [0, count], [count], window, BLOCK)

    make = attention or reference
    metadata = AttentionMetadata(tuple(GroupMetadata(slots, make(group.window, table)) for group in groups))
    with torch.inference_mode():
        return model.compute_logits(model.forward(ids, positions, metadata, PlainKV(groups, num_blocks + 1, device)))
