"""Write the config.json of a released model, without weights or tokenizer. With LOAD_FORMAT=dummy that is enough to serve it.

    python scripts/bench/released_configs.py gemma4-e2b FOLDER
    LOAD_FORMAT=dummy python -m inference_server --model-name FOLDER

The values are those of the released checkpoints. `--num-layers` keeps only so many of the first layers, where memory is short.
"""

import argparse
import json
from pathlib import Path
from typing import Any


def _layer_types(num_layers: int, period: int) -> list[str]:
    """The types of the layers: every `period`-th is full, the others slide."""
    return ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(num_layers)]


GEMMA4: dict[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
    "head_dim": 256,
    "global_head_dim": 512,
    "final_logit_softcapping": 30.0,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
SMALL: dict[str, Any] = {
    "num_attention_heads": 8,
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
    "max_position_embeddings": 131072,
}
LARGE: dict[str, Any] = {
    "sliding_window": 1024,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "max_position_embeddings": 262144,
    "use_bidirectional_attention": "vision",
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gemma4-e2b": {
        **GEMMA4,
        **SMALL,
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "layer_types": _layer_types(35, 5),
        "num_key_value_heads": 1,
        "num_kv_shared_layers": 20,
        "use_double_wide_mlp": True,
    },
    "gemma4-e4b": {
        **GEMMA4,
        **SMALL,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "layer_types": _layer_types(42, 6),
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 18,
    },
    "gemma4-26b-a4b": {
        **GEMMA4,
        **LARGE,
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "layer_types": _layer_types(30, 6),
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "enable_moe_block": True,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
    },
    "gemma4-31b": {
        **GEMMA4,
        **LARGE,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "layer_types": _layer_types(60, 6),
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
    },
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
    },
}


def shortened(config: dict[str, Any], num_layers: int) -> dict[str, Any]:
    """The config with only its first layers, of which the last is full. Layers that share KV keep their share of the layers.

    The last layer with KV of its own is full too: else the last layer, if it shares, would have none to read.
    """
    types = config.get("layer_types")
    if types is None:
        return {**config, "num_hidden_layers": num_layers}
    shared = config.get("num_kv_shared_layers", 0) * num_layers // len(types)
    kept = [*types[: num_layers - 1], "full_attention"]
    kept[num_layers - shared - 1] = "full_attention"
    return {**config, "layer_types": kept, "num_kv_shared_layers": shared}


def spelled_out(config: dict[str, Any]) -> dict[str, Any]:
    """The config with the fields that this project derives and other engines need to be told."""
    return {"dtype": "bfloat16", "num_hidden_layers": len(config.get("layer_types", ())), **config}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=CONFIGS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num-layers", type=int)
    arguments = parser.parse_args()
    config = CONFIGS[arguments.model]
    if arguments.num_layers is not None:
        config = shortened(config, arguments.num_layers)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    (arguments.folder / "config.json").write_text(json.dumps(spelled_out(config), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
