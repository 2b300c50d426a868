"""Which hand-written model serves which architecture, by the names in config.json."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from inference_server.core.errors import ModelLoadError
from inference_server.core.kv_layout import LayerGroup
from inference_server.models.attention import AttentionMetadata, LayerKV
from inference_server.models.gemma3 import Gemma3, Gemma3Config
from inference_server.models.gemma4 import Gemma4
from inference_server.models.gemma4_config import Gemma4Config
from inference_server.models.qwen3 import Qwen3, Qwen3Config
from inference_server.models.weights import Weights


class ModelConfig(Protocol):
    """What the backend asks of a model's config."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_position_embeddings(self) -> int: ...

    def layer_groups(self, itemsize: int) -> tuple[LayerGroup, ...]: ...


class Model(Protocol):
    """A forward over a flat batch of tokens; shapes as in `Gemma3`.

    drops_unsampled: the last layers own no KV, so that tokens nobody samples from need not pass through them, and `forward` returns hidden
    states of `AttentionMetadata.sampled` alone where these are named.
    """

    @property
    def drops_unsampled(self) -> bool: ...

    def forward(self, input_ids: Tensor, positions: Tensor, metadata: AttentionMetadata, kv: LayerKV) -> Tensor: ...

    def compute_logits(self, hidden: Tensor) -> Tensor: ...

    def likeliest(self, hidden: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """How a family reads its config.json and builds itself from its weights."""

    config_from_dict: Callable[[Mapping[str, Any]], ModelConfig]
    model: Callable[[Any, Weights], Model]


_GEMMA3 = ModelFamily(Gemma3Config.from_dict, Gemma3)
_GEMMA4 = ModelFamily(Gemma4Config.from_dict, Gemma4)
_QWEN3 = ModelFamily(Qwen3Config.from_dict, Qwen3)
_FAMILIES = {
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "Gemma4ForCausalLM": _GEMMA4,
    "Gemma4ForConditionalGeneration": _GEMMA4,
    "Gemma4UnifiedForCausalLM": _GEMMA4,
    "Gemma4UnifiedForConditionalGeneration": _GEMMA4,
    "Qwen3ForCausalLM": _QWEN3,
    "Qwen3MoeForCausalLM": _QWEN3,
}


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json. Raises ModelLoadError if it cannot be read or is not a model's configuration."""
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("architectures") or [], list):
        raise ModelLoadError(f"{path} is no model's configuration")
    return config


def find_family(config: Mapping[str, Any]) -> tuple[str, ModelFamily] | None:
    """The first architecture of a parsed config.json that has a hand-written forward, with its family; None if there is none."""
    for architecture in config.get("architectures") or ():
        if architecture in _FAMILIES:
            return architecture, _FAMILIES[architecture]
    return None
