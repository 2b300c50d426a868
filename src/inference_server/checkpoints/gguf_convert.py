"""Convert a Gemma 3 GGUF file into a Hugging Face folder: config, bf16 safetensors, tokenizer, generation defaults.

Conversion runs once per file and lands in the cache folder; loading is then the same as for any other checkpoint.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tqdm import tqdm

from inference_server.checkpoints.build_once import build_once
from inference_server.checkpoints.errors import CheckpointError
from inference_server.checkpoints.gguf import GGUFFile
from inference_server.checkpoints.gguf_tokenizer import build_tokenizer_json

CONVERTER_VERSION = 2
"""Part of the folder's name: raise it when the output changes, and old caches are converted anew."""

_ARCHITECTURE = "gemma3"
_LAYERS_PER_PATTERN = 6  # five sliding-window layers, then a full one
_LOCAL_ROPE_THETA = 10_000.0  # GGUF has no key for it
_GEMMA3_27B_LAYERS = 62  # the only size that does not scale queries by head_dim**-0.5
_SPECIAL_TOKENS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}  # Hugging Face word: GGUF word
_TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_PER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def convert_gguf(path: Path, cache_dir: Path, progress: bool = True) -> Path:
    """The Hugging Face folder of a GGUF file, converted on first use and kept under `cache_dir`.

    A file is known by its path, size and modification time. Raises `CheckpointError`.
    """
    path = path.resolve()
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    stat = path.stat()
    key = hashlib.sha256(f"{path}\n{stat.st_size}\n{stat.st_mtime_ns}".encode()).hexdigest()[:16]
    target = cache_dir / f"{path.stem}-{key}-v{CONVERTER_VERSION}"
    return build_once(target, lambda folder: write_hf_folder(path, folder, greedy=False, progress=progress))


def write_hf_folder(path: Path, folder: Path, *, greedy: bool, progress: bool) -> None:
    """Convert the GGUF file at `path` into the existing, empty `folder`.

    `greedy` makes temperature 0 the default of the converted model. Raises `CheckpointError`.
    """
    gguf = GGUFFile.open(path)
    if (architecture := gguf.metadata.get("general.architecture")) != _ARCHITECTURE:
        raise CheckpointError(f"{path}: architecture {architecture!r} is not supported from GGUF, only {_ARCHITECTURE!r} is")
    try:
        files = {name: json.dumps(content, ensure_ascii=False) for name, content in _json_files(gguf, greedy).items()}
        if template := gguf.metadata.get("tokenizer.chat_template"):
            if not isinstance(template, str):
                raise TypeError("the chat template is no text")
            files["chat_template.jinja"] = template
    except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
        raise CheckpointError(f"{path}: incomplete metadata ({error})") from error
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    save_file(_convert_tensors(gguf, progress), folder / "model.safetensors", metadata={"format": "pt"})


def hf_name(gguf_name: str) -> str:
    """The Hugging Face name of a Gemma 3 tensor. Raises `CheckpointError` for a name outside the architecture."""
    stem, _, kind = gguf_name.rpartition(".")
    if stem in _TOP_LEVEL:
        return f"{_TOP_LEVEL[stem]}.{kind}"
    match stem.split("."):
        case ["blk", layer, part] if part in _PER_LAYER:
            return f"model.layers.{layer}.{_PER_LAYER[part]}.{kind}"
    raise CheckpointError(f"tensor {gguf_name} does not belong to {_ARCHITECTURE}")


def _convert_tensors(gguf: GGUFFile, progress: bool) -> dict[str, torch.Tensor]:
    """All weights in bf16 under their Hugging Face names; the projections need no permutation for Gemma 3."""
    out: dict[str, torch.Tensor] = {}
    total = sum(info.num_bytes for info in gguf.tensors.values())
    with tqdm(total=total, unit="B", unit_scale=True, desc="Converting weights", disable=None if progress else True) as bar:
        for name, info in gguf.tensors.items():
            out[hf_name(name)] = _convert_tensor(gguf, name)
            bar.update(info.num_bytes)
    return out


def _convert_tensor(gguf: GGUFFile, name: str) -> torch.Tensor:
    if name.endswith("norm.weight"):
        return (gguf.tensor(name) - 1.0).to(torch.bfloat16)  # GGUF stores 1 + w
    return gguf.tensor(name, torch.bfloat16)


def _json_files(gguf: GGUFFile, greedy: bool) -> dict[str, Any]:
    metadata = gguf.metadata
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    special = {kind: metadata.get(f"tokenizer.ggml.{key}_token_id") for kind, key in _SPECIAL_TOKENS.items()}
    eos_ids = list(dict.fromkeys(index for index in (special["eos"], metadata.get("tokenizer.ggml.eot_token_id")) if index is not None))
    ids = {"bos_token_id": special["bos"], "eos_token_id": eos_ids, "pad_token_id": special["pad"]}
    sampling = {"do_sample": False, "temperature": 0.0} if greedy else {}
    return {
        "config.json": _model_config(gguf) | ids,
        "generation_config.json": ids | sampling,
        "tokenizer.json": build_tokenizer_json(metadata),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{f"{kind}_token": tokens[index] for kind, index in special.items() if index is not None},
            "add_bos_token": metadata.get("tokenizer.ggml.add_bos_token", True),
            "clean_up_tokenization_spaces": False,
            "model_max_length": metadata[f"{_ARCHITECTURE}.context_length"],
        },
    }


def _model_config(gguf: GGUFFile) -> dict[str, Any]:
    """`config.json` of `Gemma3ForCausalLM`, in the form of the published checkpoints."""

    def value(key: str) -> Any:
        return gguf.metadata[f"{_ARCHITECTURE}.{key}"]

    layers, heads, hidden, head_dim = (
        value(k) for k in ("block_count", "attention.head_count", "embedding_length", "attention.key_length")
    )
    if not 0 < layers <= len(gguf.tensors):
        raise ValueError(f"{layers} layers in {len(gguf.tensors)} tensors")
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "dtype": "bfloat16",
        "vocab_size": gguf.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": value("attention.head_count_kv"),
        "head_dim": head_dim,
        "query_pre_attn_scalar": hidden // heads if layers == _GEMMA3_27B_LAYERS else head_dim,
        "sliding_window": value("attention.sliding_window"),
        "layer_types": ["sliding_attention" if (layer + 1) % _LAYERS_PER_PATTERN else "full_attention" for layer in range(layers)],
        "max_position_embeddings": value("context_length"),
        "rms_norm_eps": round(value("attention.layer_norm_rms_epsilon"), 12),
        "rope_theta": value("rope.freq_base"),
        "rope_local_base_freq": _LOCAL_ROPE_THETA,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "use_cache": True,
    }
    if (factor := gguf.metadata.get(f"{_ARCHITECTURE}.rope.scaling.factor")) is not None:
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    return config
