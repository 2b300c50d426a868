"""The sizes and defaults that loading decides. The embedded model's tests cover the loading itself."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from inference_server.core.errors import ModelLoadError
from inference_server.core.kv_layout import LayerGroup
from inference_server.core.model_spec import GenerationDefaults, ModelSpec
from inference_server.core.options import SLOW_CHUNK_TOKENS, CacheOptions, ModelOptions, SchedulerOptions
from inference_server.engine.generation_defaults import generation_defaults
from inference_server.engine.model_loader import HOST_ARENA_BYTES, ModelLoader, kv_layout
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler
from inference_server.tokenization.tokenizer import ByteTokenizer

SPEC = ModelSpec("a", 10, 100, (LayerGroup((0, 1), 1, 64, 2),), "cuda:0", "bfloat16", 1, free_bytes=100 * 2**30)


def test_the_arena_takes_its_share_of_what_is_free() -> None:
    layout = kv_layout(CacheOptions(memory_fraction=0.5), SPEC)
    assert 0 <= 50 * 2**30 - layout.arena_bytes < layout.slab_bytes


def test_the_arena_leaves_a_host_its_memory() -> None:
    assert kv_layout(CacheOptions(), replace(SPEC, device="cpu")).arena_bytes == HOST_ARENA_BYTES
    small = kv_layout(CacheOptions(memory_fraction=0.5), replace(SPEC, device="cpu", free_bytes=2**30))
    assert small.arena_bytes == 2**29


def test_a_number_of_blocks_wins() -> None:
    assert kv_layout(CacheOptions(num_blocks=7), SPEC).num_blocks(0) == 8


def test_no_memory_is_one_clear_line() -> None:
    with pytest.raises(ModelLoadError, match=r"^no memory for a KV pool: 0 MiB on cuda:0; set KV_CACHE_NUM_BLOCKS$"):
        kv_layout(CacheOptions(), replace(SPEC, free_bytes=0))


def write_config(folder: Path, vocab_size: int) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    limits = {"vocab_size": vocab_size, "max_position_embeddings": 64}
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32, **sizes, **limits}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("backend", ["custom", "hf"])
def test_random_weights_need_a_config_and_nothing_else(backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_config(tmp_path, 300)
    options = ModelOptions(str(tmp_path), None, tmp_path / "cache", backend, device="cpu", dtype="float32", load_format="dummy")
    model = ModelLoader(options, CacheOptions(num_blocks=8), SchedulerOptions()).load()
    assert isinstance(model.tokenizer, ByteTokenizer)
    assert model.tokenizer.vocab_size == model.spec.vocab_size == 300
    assert caplog.text.count("no tokenizer.json") == 1
    assert isinstance(model.scheduler, ContinuousBatchScheduler) and model.scheduler._chunk == SLOW_CHUNK_TOKENS
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json"):
        ModelLoader(replace(options, load_format="auto"), CacheOptions(num_blocks=8), SchedulerOptions()).load()


def test_a_vocabulary_without_room_for_bytes_needs_a_tokenizer(tmp_path: Path) -> None:
    write_config(tmp_path, 257)
    options = ModelOptions(str(tmp_path), None, tmp_path / "cache", device="cpu", dtype="float32", load_format="dummy")
    with pytest.raises(ModelLoadError, match="a vocabulary of 257 does not hold"):
        ModelLoader(options, CacheOptions(num_blocks=8), SchedulerOptions()).load()


def test_sampling_defaults_come_from_the_checkpoint(tmp_path: Path) -> None:
    assert generation_defaults(tmp_path) == GenerationDefaults()
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"temperature": 0.0, "top_k": 64, "top_p": None, "eos_token_id": 1}))
    assert generation_defaults(tmp_path) == GenerationDefaults(temperature=0.0, top_k=64)
    path.write_text(json.dumps({"repetition_penalty": 0}))
    with pytest.raises(ModelLoadError, match="repetition_penalty is 0"):
        generation_defaults(tmp_path)
    path.write_text("{")
    with pytest.raises(ModelLoadError, match="unreadable"):
        generation_defaults(tmp_path)
    path.write_text("[]")
    with pytest.raises(ModelLoadError, match="not a JSON object"):
        generation_defaults(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", -1),
        ("temperature", float("nan")),
        ("top_k", 1.5),
        ("top_p", 2),
        ("min_p", True),
        ("min_p", []),
        ("repetition_penalty", 11),
    ],
)
def test_sampling_defaults_that_no_request_could_use_are_refused(name: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({name: value}))
    with pytest.raises(ModelLoadError, match=f"{name} is .* and not a number from 0 to"):
        generation_defaults(tmp_path)
