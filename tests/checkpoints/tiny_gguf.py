"""A complete, tiny Gemma 3 model as a GGUF file, with random weights and a vocabulary of letters, pairs and bytes."""

from pathlib import Path
from typing import Any

import numpy as np
from gguf_writer import f32, write_gguf

LAYERS, HIDDEN, FF, HEADS, HEAD_DIM = 6, 64, 128, 2, 32
NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]
RUNS = ["\n\n", "\n\n\n", "  ", "   "]
BYTES = [f"<0x{i:02X}>" for i in range(256)]
MERGED = ["th", "▁th", "he", "▁the", "in", "the", "ing", "▁a"]
LETTERS = ["▁", "\n", *"abcdefghijklmnopqrstuvwxyz.,é日"]


def vocabulary() -> dict[str, Any]:
    """The GGUF keys of the tokenizer. User-defined runs spell ▁ as a space, as GGUF writers do."""
    tokens = [*SPECIAL, *RUNS, *BYTES, *MERGED, *LETTERS]
    kinds = [CONTROL] * len(SPECIAL) + [USER] * len(RUNS) + [BYTE] * 256 + [NORMAL] * (len(MERGED) + len(LETTERS))
    first = len(SPECIAL) + len(RUNS) + 256
    scores = [-1000.0] * (len(SPECIAL) + len(RUNS)) + [0.0] * 256 + [-float(i) for i in range(len(tokens) - first)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    }


def write_tiny_gemma(path: Path) -> dict[str, np.ndarray]:
    """Write the model. Returns its tensors by GGUF name."""
    rng = np.random.default_rng(0)
    metadata = vocabulary() | {
        "general.architecture": "gemma3",
        "gemma3.context_length": 256,
        "gemma3.embedding_length": HIDDEN,
        "gemma3.block_count": LAYERS,
        "gemma3.feed_forward_length": FF,
        "gemma3.attention.head_count": HEADS,
        "gemma3.attention.head_count_kv": 1,
        "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
        "gemma3.attention.key_length": HEAD_DIM,
        "gemma3.attention.value_length": HEAD_DIM,
        "gemma3.attention.sliding_window": 8,
        "gemma3.rope.freq_base": 1e6,
    }
    shapes = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HEADS * HEAD_DIM, HIDDEN),
        "attn_k": (HEAD_DIM, HIDDEN),
        "attn_v": (HEAD_DIM, HIDDEN),
        "attn_output": (HIDDEN, HEADS * HEAD_DIM),
        "attn_q_norm": (HEAD_DIM,),
        "attn_k_norm": (HEAD_DIM,),
        "post_attention_norm": (HIDDEN,),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (FF, HIDDEN),
        "ffn_up": (FF, HIDDEN),
        "ffn_down": (HIDDEN, FF),
        "post_ffw_norm": (HIDDEN,),
    }
    vocab_size = len(metadata["tokenizer.ggml.tokens"])
    arrays = {"token_embd.weight": rng.normal(size=(vocab_size, HIDDEN)), "output_norm.weight": rng.normal(1, 0.1, HIDDEN)}
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            mean = 1.0 if name.endswith("norm") else 0.0
            arrays[f"blk.{layer}.{name}.weight"] = rng.normal(mean, 0.1, shape)
    write_gguf(path, metadata, {name: f32(array) for name, array in arrays.items()})
    return arrays
