"""A transformers causal LM as a function: load it, learn its KV layout by asking it, and run one forward with given masks.

Masks are given for each kind of layer, additive, as every attention implementation of transformers takes them; the library's own
derivation of masks and positions from a cache is never used.
"""

import inspect
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, Cache, PreTrainedConfig, PreTrainedModel

from inference_server.backends.device import select_device, select_dtype, use_available_cores
from inference_server.backends.paged_hf_cache import KVProbe
from inference_server.core.errors import ModelLoadError
from inference_server.core.kv_layout import LayerGroup
from inference_server.core.options import ModelOptions
from inference_server.models.attention import FULL, SLIDING


class HFModel:
    """The model with its facts. groups: full attention first; window of a group None for full attention."""

    def __init__(self, options: ModelOptions, folder: Path) -> None:
        """Raises ModelLoadError."""
        self.device = select_device(options.device)
        if self.device.type == "cpu":
            use_available_cores()
        try:
            self._model = _load(options, folder).to(self.device).eval()
        except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
            raise ModelLoadError(f"cannot load {folder}: {str(error).strip().partition(chr(10))[0]}") from error
        config = self._model.config.get_text_config(decoder=True)
        self.architecture = type(self._model).__name__
        self.dtype: torch.dtype = self._model.dtype
        self.num_parameters: int = self._model.num_parameters()
        self.max_model_len = _max_model_len(config)
        window = getattr(config, "sliding_window", None)
        layer_types = getattr(config, "layer_types", None) or [SLIDING if window else FULL] * config.num_hidden_layers
        if unknown := set(layer_types) - {FULL, SLIDING}:
            raise ModelLoadError(f"{self.architecture} has layers without paged KV: {', '.join(sorted(unknown))}")
        parameters = inspect.signature(self._model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._mixes_masks = len(set(layer_types)) > 1
        self._windows = {FULL: None, SLIDING: window}
        self.vocab_size, self.groups = self._probe(layer_types)

    def forward(self, token_ids: Tensor, positions: Tensor, masks: Mapping[int | None, Tensor], cache: Cache) -> Tensor:
        """Logits [R, V] after the last of each row's tokens. token_ids and positions: [R, Q]; masks by window."""
        by_type = {layer_type: masks[window] for layer_type, window in self._windows.items() if window in masks}
        mask = by_type if self._mixes_masks else next(iter(masks.values()))
        arguments = {"input_ids": token_ids, "position_ids": positions, "attention_mask": mask, self._cache_name: cache}
        return self._model(**arguments, use_cache=True, logits_to_keep=1).logits[:, -1]

    @torch.inference_mode()
    def _probe(self, layer_types: list[str]) -> tuple[int, tuple[LayerGroup, ...]]:
        """Vocabulary and layer groups, seen in a forward of one token; it warms the model up as well."""
        probe = KVProbe()
        token = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        mask = torch.zeros(1, 1, 1, 1, dtype=self.dtype, device=self.device)
        logits = self.forward(token, token, dict.fromkeys(self._windows.values(), mask), probe)
        members: dict[tuple[int | None, int, int], list[int]] = {}
        for layer, (key, value) in sorted(probe.shapes.items()):
            if key != value:
                raise ModelLoadError(f"{self.architecture} has keys and values of different shapes, which the KV pool cannot hold")
            members.setdefault((self._windows[layer_types[layer]], key[1], key[3]), []).append(layer)
        if not members:
            raise ModelLoadError(f"{self.architecture} does not use a transformers KV cache")
        ordered = sorted(members.items(), key=lambda item: item[0][0] is not None)
        groups = tuple(
            LayerGroup(tuple(layers), num_kv_heads, head_dim, self.dtype.itemsize, window)
            for (window, num_kv_heads, head_dim), layers in ordered
        )
        return logits.shape[-1], groups


def _max_model_len(config: PreTrainedConfig) -> int:
    length: int | None = getattr(config, "max_position_embeddings", None)
    if not length:
        raise ModelLoadError(f"the config of {config.model_type} names no max_position_embeddings")
    return length


def _load(options: ModelOptions, folder: Path) -> PreTrainedModel:
    """dtype "auto" is the checkpoint's own."""
    dtype = "auto" if options.dtype == "auto" else select_dtype(options.dtype)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if options.load_format == "dummy":
        return AutoModelForCausalLM.from_config(config, dtype=config.dtype if dtype == "auto" else dtype)
    return AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=dtype, local_files_only=True)
