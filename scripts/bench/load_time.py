"""Time and host memory of loading a sharded checkpoint, in a process of its own.

    python scripts/bench/load_time.py --gigabytes 2

Writes a Qwen3 of random bf16 weights as several safetensors shards into a temporary folder, loads it, and prints what Linux counted:
the peak of resident memory, and how much of what is resident in the end is anonymous and how much is pages of mapped files. Pages of
files can be taken back at any time, but they count in the peak here. What loading itself takes is the peak beyond what the process
held before and, where the model lies in host memory, beyond the model.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from inference_server.backends.device import select_device
from inference_server.checkpoints.safetensors_reader import open_checkpoint
from inference_server.kernels.select_ops import select_ops
from inference_server.models.qwen3 import Qwen3, Qwen3Config
from inference_server.models.weights import Weights

SHARD_TENSORS = "model-{:05}-of-{:05}.safetensors"
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a dense, tied Qwen3."""
    hidden, size, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = (config[f"num_{kind}_heads"] * head_dim for kind in ("attention", "key_value"))
    layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "self_attn.q_norm": (head_dim,),
        "self_attn.k_norm": (head_dim,),
        "mlp.gate_proj": (size, hidden),
        "mlp.up_proj": (size, hidden),
        "mlp.down_proj": (hidden, size),
    }
    found = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        found |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return found
