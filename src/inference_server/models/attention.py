"""What a forward has to know about the step beside tokens and positions: where KV lies and where rows begin.

The backend builds one `AttentionMetadata` a step; every layer reads the part of its group. It is an argument, never a global.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from inference_server.kernels.ops import Attention

FULL, SLIDING = "full_attention", "sliding_attention"  # the layer types of config.json


class LayerKV(Protocol):
    """Keys and values by layer, as the backend's KV arena and a test's plain tensors offer them."""

    def group_of(self, layer: int) -> int: ...

    def key(self, layer: int) -> Tensor: ...

    def value(self, layer: int) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The step as one layer group sees it.

    slot_mapping: int64 [tokens], where each token's KV goes (block * block_size + offset).
    block_tables: int32 [rows, max_blocks of the step]. window: keys a query sees, its own included; None for all.
    attention: (q, key, value, scale) to the attention output, the kernel that the backend chose, bound to this step.
    """

    slot_mapping: Tensor
    block_tables: Tensor
    window: int | None
    attention: Attention


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """The rows of one step; those that compute a single token come first.

    cu_seqlens_q: int32 [rows + 1], where each row's tokens start. seq_lens: int32 [rows], tokens of the row up to its last of
    this step. num_single: rows of one token. max_query_len, max_seq_len: the largest of either, for launch sizes.
    """

    groups: tuple[GroupMetadata, ...]
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    num_single: int
    max_query_len: int
    max_seq_len: int
