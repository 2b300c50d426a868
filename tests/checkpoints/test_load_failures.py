"""Whatever is wrong with a model, the server says it in one clear line and exits with code 1: nothing is half loaded."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from forked_server import Ended, forked_server
from safetensors.torch import load_file, save_file
from tiny_gguf import write_tiny_gemma

from inference_server.checkpoints.gguf_convert import write_hf_folder
from inference_server.config import Settings
from inference_server.core.errors import ModelLoadError
from inference_server.server import load_model

ROOT = Path(__file__).parents[2]
FIRST, SECOND, INDEX = "one.safetensors", "two.safetensors", "model.safetensors.index.json"
NORM = "model.norm.weight"
Damage = Callable[[Path], str | None]
"""Spoils a whole model in the folder. Returns the MODEL_NAME to ask for, if it is not the folder."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Gemma 3, as a GGUF file and as a folder of two shards."""
    root = tmp_path_factory.mktemp("whole")
    folder = root / "model"
    folder.mkdir()
    write_tiny_gemma(root / "tiny.gguf")
    write_hf_folder(root / "tiny.gguf", folder, greedy=True, progress=False)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    write_shards(folder, tensors)
    return root


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    return tmp_path / "model"


def write_shards(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    shards = {FIRST: {name: tensors[name] for name in tensors if name != NORM}, SECOND: {NORM: tensors[NORM]} if NORM in tensors else {}}
    for file, content in shards.items():
        save_file(content, folder / file)
    weight_map = {name: file for file, content in shards.items() for name in content}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def changed(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / FIRST) | load_file(folder / SECOND)
        change(tensors)
        write_shards(folder, tensors)

    return damage


def config(**fields: Any) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return damage


def written(name: str, text: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).write_text(text)

    return damage


def removed(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def truncated(folder: Path) -> None:
    (folder / FIRST).write_bytes((folder / FIRST).read_bytes()[:-1000])


def gguf(spoil: Callable[[bytes], bytes]) -> Damage:
    def damage(folder: Path) -> str:
        path = folder.parent / "tiny.gguf"
        path.write_bytes(spoil(path.read_bytes()))
        return str(path)

    return damage


def conversion_with_other_bytes(folder: Path) -> str:
    """Change the bytes of a conversion but not its sizes, so that it is not made anew."""
    path = folder.parent / "tiny.gguf"
    load_model(settings(folder, str(path)))
    (converted,) = (folder.parent / "cache").glob("tiny-*[0-9]/model.safetensors")
    converted.write_bytes(b"\xff" * converted.stat().st_size)
    return str(path)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "truncated shard": (truncated, r"/one\.safetensors: truncated or corrupt"),
    "missing shard": (removed(SECOND), r"/two\.safetensors: the shard is missing"),
    "index cut off": (written(INDEX, "{"), r"index\.json: not a readable shard index"),
    "index of something else": (written(INDEX, '{"weight_map": [1]}'), r"index\.json: not a readable shard index"),
    "integers for weights": (changed(lambda t: t.update({NORM: t[NORM].long()})), rf"tensor {NORM} is stored as I64; only BF16, F16, F32"),
    "fp8 for weights": (changed(lambda t: t.update({NORM: t[NORM].to(torch.float8_e4m3fn)})), rf"tensor {NORM} is stored as F8_E4M3;"),
    "missing tensor": (changed(lambda t: t.pop(NORM)), rf"the checkpoint has no tensor {NORM}"),
    "misshapen tensor": (changed(lambda t: t.update({NORM: torch.ones(63)})), rf"tensor {NORM} has the shape \(63,\), not \(64,\)"),
    "unused tensor": (
        changed(lambda t: t.update({"model.extra": torch.ones(1)})),
        r"1 tensors .* does not use, such as model\.extra",
    ),
    "no weights": (lambda folder: [removed(name)(folder) for name in (FIRST, SECOND, INDEX)] and None, "neither model.safetensors nor"),
    "config cut off": (written("config.json", "{"), r"/model: the tokenizer cannot be read \(config\.json: "),
    "config of nothing": (written("config.json", "{}"), r"cannot load .*/model: "),
    "config without a size": (config(hidden_size=None), "config.json has no hidden_size"),
    "size as text": (config(hidden_size="64"), r"hidden_size = '64' is not supported for Gemma 3"),
    "layer types of another type": (config(layer_types=7), r"/config\.json is damaged: TypeError"),
    "unknown architecture": (config(architectures=["NoSuchModel"], model_type="no_such"), r"cannot load .*/model: .*no_such"),
    "no tokenizer": (removed("tokenizer.json"), "/model: no tokenizer.json"),
    "tokenizer cut off": (written("tokenizer.json", "{"), "/model: the tokenizer cannot be read"),
    "token of another type": (written("tokenizer_config.json", '{"bos_token": 5}'), r"cannot be read \(bos_token is no text\)"),
    "end of text of another type": (written("generation_config.json", '{"eos_token_id": "x"}'), "eos_token_id is no token id"),
    "chat template of another type": (written("tokenizer_config.json", '{"chat_template": [5]}'), "the chat template cannot be read"),
    "no folder": (lambda folder: str(folder / "absent"), "no such folder, and not a hub id either"),
    "truncated GGUF": (gguf(lambda data: data[:-5000]), r"tiny\.gguf: not a readable GGUF file \(.*truncated\)"),
    "GGUF cut in its head": (gguf(lambda data: data[:100]), r"tiny\.gguf: not a readable GGUF file"),
    "GGUF of other bytes": (gguf(lambda data: b"\0" * len(data)), r"tiny\.gguf: not a readable GGUF file \(the magic bytes are wrong\)"),
    "GGUF with a spoilt head": (gguf(lambda data: data[:24] + b"\xff" * 200 + data[224:]), r"tiny\.gguf: not a readable GGUF file"),
    "empty GGUF": (gguf(lambda data: b""), r"tiny\.gguf: not a readable GGUF file"),
    "conversion with other bytes": (
        conversion_with_other_bytes,
        r"truncated or corrupt .*; delete .*/tiny-\w+-v\d+ to have it",
    ),
}


def settings(folder: Path, name: str) -> Settings:
    return Settings(model_name=name, model_cache_dir=folder.parent / "cache", dtype="float32", device="cpu", kv_cache_num_blocks=8)


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_model_is_one_line(folder: Path, kind: str) -> None:
    damage, message = DAMAGES[kind]
    name = damage(folder) or str(folder)
    with pytest.raises(ModelLoadError, match=message) as caught:
        load_model(settings(folder, name))
    assert "\n" not in str(caught.value)


def server_environment(name: str, cache: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT / "src"), "MODEL_NAME": name, "MODEL_CACHE_DIR": str(cache), "PORT": "0", "LOG_LEVEL": "warning"}


def serve(name: str, cache: Path, **environment: str) -> Ended:
    """Run the server until it gives up."""
    done = subprocess.run(
        [sys.executable, "-m", "inference_server"],
        env={**os.environ, **server_environment(name, cache), **environment},
        cwd=cache.parent,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return Ended(done.returncode, done.stderr)


def assert_one_line(ended: Ended, message: str) -> None:
    assert ended.status == 1, ended.errors
    (line,) = ended.errors.splitlines()
    assert message in line


def test_the_process_ends_with_the_line(folder: Path) -> None:
    truncated(folder)
    assert_one_line(serve(str(folder), folder.parent / "cache"), f"{folder / FIRST}: truncated or corrupt")


@pytest.mark.heavy
@pytest.mark.parametrize("kind", DAMAGES)
def test_the_process_says_the_same_line(folder: Path, kind: str) -> None:
    damage, _ = DAMAGES[kind]
    name = damage(folder) or str(folder)
    with pytest.raises(ModelLoadError) as caught:
        load_model(settings(folder, name))
    environment = server_environment(name, folder.parent / "cache") | {"DTYPE": "float32", "DEVICE": "cpu"}
    assert_one_line(forked_server(folder.parent, environment), str(caught.value))


class Gate(BaseHTTPRequestHandler):
    """A hub on which every model is gated."""

    def do_GET(self) -> None:
        self.send_response(403)
        self.send_header("X-Error-Code", "GatedRepo")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def gated_hub() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Gate) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.heavy
def test_a_gated_model_and_a_hub_out_of_reach_are_one_line(gated_hub: str, tmp_path: Path) -> None:
    environment = {"HF_HOME": str(tmp_path / "hub"), "NO_PROXY": "127.0.0.1"}
    gated = serve("owner/model", tmp_path / "cache", HF_ENDPOINT=gated_hub, **environment)
    assert_one_line(gated, "owner/model: access is gated; accept its terms on the hub and set HF_TOKEN")
    absent = serve("owner/model", tmp_path / "cache", HF_ENDPOINT="http://127.0.0.1:9", **environment)
    assert_one_line(absent, "owner/model: not in the local cache, and the hub cannot be reached")
