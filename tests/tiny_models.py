"""Tiny random models of transformers for parity tests, with the proportions and the options of the released ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    Gemma4UnifiedForCausalLM,
    Gemma4UnifiedTextConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

COMMON: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "eos_token_id": None,
}
SMALL_GEMMA3: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "eos_token_id": None,
}
GEMMA4: dict[str, Any] = {
    **COMMON,
    "num_hidden_layers": 8,
    "num_key_value_heads": 2,
    "global_head_dim": 32,
    "sliding_window": 8,
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2,
    "final_logit_softcapping": 30.0,
}
NO_EXTRAS = {"hidden_size_per_layer_input": 0}
KEYS_ARE_VALUES = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
SMALL_GEMMA4 = {  # the options of E2B; those of E4B differ only in the MLP
    **GEMMA4,
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 4,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 512,
}
MOE_GEMMA4 = {
    **GEMMA4,
    **NO_EXTRAS,
    **KEYS_ARE_VALUES,
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
}
QWEN3 = {**COMMON, "num_hidden_layers": 3, "num_key_value_heads": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
QWEN3_MOE = {
    **QWEN3,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "mlp_only_layers": [1],
}

TINY: dict[str, Callable[[], PreTrainedModel]] = {
    "gemma4-e2b": lambda: gemma4(**SMALL_GEMMA4),
    "gemma4-e4b": lambda: gemma4(**{**SMALL_GEMMA4, "num_key_value_heads": 2, "use_double_wide_mlp": False}),
    "gemma4-12b": lambda: gemma4_unified(**GEMMA4, **KEYS_ARE_VALUES),
    "gemma4-26b-a4b": lambda: gemma4(**MOE_GEMMA4),
    "gemma4-31b": lambda: gemma4(**GEMMA4, **NO_EXTRAS, **KEYS_ARE_VALUES),
    "qwen3": lambda: qwen3(**QWEN3),
    "qwen3-tied": lambda: qwen3(**QWEN3, tie_word_embeddings=True),
    "qwen3-moe": lambda: qwen3_moe(**QWEN3_MOE),
}


def save_tiny(name: str, folder: Path) -> PreTrainedModel:
    """Make the model of that name and save it in `folder`. Its embedding is small, so that no token repeats itself if the head is tied."""
    model = TINY[name]()
    model.get_input_embeddings().weight.data *= 0.02
    model.save_pretrained(folder)
    return model


def gemma3(**config: Any) -> Gemma3ForCausalLM:
    """The smallest Gemma 3: for tests of what runs a model, in which many forwards matter more than options."""
    torch.manual_seed(2)
    return Gemma3ForCausalLM(Gemma3TextConfig(**{**SMALL_GEMMA3, **config}))


def gemma4(**config: Any) -> Gemma4ForCausalLM:
    return _randomized(Gemma4ForCausalLM, Gemma4TextConfig(**config))


def gemma4_unified(**config: Any) -> Gemma4UnifiedForCausalLM:
    return _randomized(Gemma4UnifiedForCausalLM, Gemma4UnifiedTextConfig(**config))


def qwen3(**config: Any) -> Qwen3ForCausalLM:
    return _randomized(Qwen3ForCausalLM, Qwen3Config(**config))


def qwen3_moe(**config: Any) -> Qwen3MoeForCausalLM:
    return _randomized(Qwen3MoeForCausalLM, Qwen3MoeConfig(**config))


def _randomized(model_class: type[PreTrainedModel], config: Any) -> Any:
    """A model with random norms and scales: they start at one, which hides those that are left out or applied wrongly.

    Queries and keys stay short. At Gemma 4's scale of 1, long random ones select single keys, and rounding alone would move logits by 1e-4.
    """
    torch.manual_seed(7)
    model = model_class(config).eval()
    for name, tensor in model.state_dict().items():
        if "q_norm" in name or "k_norm" in name:
            nn.init.uniform_(tensor, 0.3, 0.9)
        elif "norm" in name or "scal" in name:
            nn.init.uniform_(tensor, 0.5, 1.5)
    return model
