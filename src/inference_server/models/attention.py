"""What a forward has to know about a step beside tokens and positions: where KV lies and where rows begin.

The backend builds one `AttentionMetadata` a step; every layer reads the part of its group. It is an argument, never a global.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from inference_server.kernels.ops import Attention

FULL, SLIDING = "full_attention", "sliding_attention"  # the layer types of config.json


class LayerKV(Protocol):
    """Keys and values by layer, as the backend's KV arena and a test's plain tensors offer them."""

    def group_of(self, layer: int) -> int:
        """The layer group whose block tables serve the layer."""
        ...

    def key(self, layer: int) -> Tensor:
        """[num_blocks, block_size, num_kv_heads, head_dim], writable."""
        ...

    def value(self, layer: int) -> Tensor:
        """As `key`."""
        ...


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The step as one layer group sees it.

    slot_mapping: int64 [tokens], where each token's KV goes (block * block_size + offset).
    attention: the kernel that the backend chose, bound to this step; from (q, key, value, scale) to the attention output.
    """

    slot_mapping: Tensor
    attention: Attention


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """The rows of one step, which lie one after the other; those that compute a single token come first.

    sampled: the tokens whose hidden states are wanted; None for all. Only for a model with `drops_unsampled`.
    """

    groups: tuple[GroupMetadata, ...]
    sampled: "SampledTokens | None" = None


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The tokens that are sampled from, each the last of its row.

    indices: int32 [sampled], where they lie in the flat batch. metadata: for the same step as if it computed only these tokens, and stored
    nothing.
    """

    indices: Tensor
    metadata: AttentionMetadata
