"""Time and host memory of loading a sharded checkpoint, in a process of its own.

    python scripts/bench/load_time.py --gigabytes 2

Writes a Qwen3 of random bf16 weights as several safetensors shards into a temporary folder, loads it, and prints what Linux counted:
the peak of resident memory, and how much of the memory resident at the end is anonymous or pages of mapped files. Pages of files can be
taken back at any time, but they count in the peak. Loading itself takes the peak less what the process held before and, if the model
lies in host memory, less the model.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from inference_server.backends.device import select_device
from inference_server.checkpoints.safetensors_reader import open_checkpoint
from inference_server.kernels.select_ops import select_ops
from inference_server.models.qwen3 import Qwen3, Qwen3Config
from inference_server.models.weights import Weights

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 65536,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a dense Qwen3 with tied embeddings, by name."""
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


def write_checkpoint(folder: Path, num_bytes: int, num_shards: int) -> None:
    """Write at least `num_bytes` of a Qwen3, in shards of about equal size, with their index and config.json."""
    config = {**CONFIG, "num_hidden_layers": 1}
    while sum(map(_num_bytes, shapes(config).values())) < num_bytes:
        config["num_hidden_layers"] += 1
    noise = torch.randn(max(map(math.prod, shapes(config).values()))).bfloat16()
    weight_map: dict[str, str] = {}
    for i, names in enumerate(_split(shapes(config), num_shards)):
        file = f"model-{i + 1:05}-of-{num_shards:05}.safetensors"
        save_file({name: noise[: math.prod(shape)].view(shape).clone() for name, shape in names.items()}, folder / file)
        weight_map |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _num_bytes(shape: tuple[int, ...]) -> int:
    return 2 * math.prod(shape)


def _split(tensors: dict[str, tuple[int, ...]], num_parts: int) -> list[dict[str, tuple[int, ...]]]:
    """Cut the tensors into `num_parts` parts of about equal bytes."""
    total, done = sum(map(_num_bytes, tensors.values())), 0
    parts: list[dict[str, tuple[int, ...]]] = [{} for _ in range(num_parts)]
    for name, shape in tensors.items():
        parts[min(num_parts - 1, done * num_parts // total)][name] = shape
        done += _num_bytes(shape)
    return parts


def load(folder: Path, device_name: str) -> dict[str, float]:
    """Load the checkpoint. Returns the seconds, and the bytes of this process before, at the peak and after."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    device = select_device(device_name)
    ops = select_ops(device, torch.bfloat16)
    torch.zeros(1, device=device)
    before = _memory()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    start = time.perf_counter()
    with closing(Weights(open_checkpoint(folder), device, torch.bfloat16, ops)) as weights:
        model = Qwen3(Qwen3Config.from_dict(config), weights)
        after = _memory()
    seconds = time.perf_counter() - start
    assert model.layers
    return {
        "seconds": seconds,
        "model": 2.0 * weights.num_parameters if device.type == "cpu" else 0.0,
        "before": before["VmRSS"],
        "peak": after["VmHWM"],
        "anonymous": after["RssAnon"] - before["RssAnon"],
        "file": after["RssFile"] - before["RssFile"],
    }


def _memory() -> dict[str, float]:
    """Fields of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = (line.split() for line in lines if line.startswith(("VmHWM", "VmRSS", "RssAnon", "RssFile")))
    return {name.rstrip(":"): 1024.0 * int(kilobytes) for name, kilobytes, _ in fields}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        sys.stdout.write(json.dumps(load(args.load, args.device)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), int(args.gigabytes * 1e9), args.shards)
        shards = [path.stat().st_size for path in Path(folder).glob("*.safetensors")]
        command = [sys.executable, __file__, "--load", folder, "--device", args.device]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    loading = found["peak"] - found["before"] - found["model"]
    rows = {
        f"checkpoint in {len(shards)} shards": sum(shards),
        "largest shard": max(shards),
        "process before loading": found["before"],
        "model in host memory": found["model"],
        "peak while loading (VmHWM)": found["peak"],
        "anonymous memory gained (RssAnon)": found["anonymous"],
        "mapped file pages gained (RssFile)": found["file"],
        "peak beyond process and model": loading,
    }
    for what, num_bytes in rows.items():
        sys.stdout.write(f"{what:<36} {num_bytes / 1e6:>9.1f} MB\n")
    sys.stdout.write(f"{'that in largest shards':<36} {loading / max(shards):>9.2f}\n{'time':<36} {found['seconds']:>9.2f} s\n")


if __name__ == "__main__":
    main()
