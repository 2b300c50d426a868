"""A released model without its weights: config.json and LOAD_FORMAT=dummy are enough for an answer over HTTP."""

import json
from pathlib import Path

import httpx
import pytest
from released_configs import CONFIGS, shortened
from server_process import serving


@pytest.mark.heavy
def test_a_thin_gemma_4_e2b_answers(tmp_path: Path) -> None:
    config = {**shortened(CONFIGS["gemma4-e2b"], 10), "vocab_size": 4096, "vocab_size_per_layer_input": 4096}
    model = tmp_path / "e2b"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config))
    with serving(tmp_path, MODEL_NAME=str(model), LOAD_FORMAT="dummy", KV_CACHE_NUM_BLOCKS="64") as (url, log):
        body = {"model": str(model), "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120, trust_env=False).json()
        chat = httpx.post(f"{url}/generate", json={"text": "Hello", "max_tokens": 2}, timeout=120, trust_env=False).json()
    assert answer["usage"]["prompt_tokens"] == 1 + len("Hello")  # begin of text, and the bytes
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["choices"][0]["text"]
    assert len(chat["token_ids"]) == 2
    assert log.read_text().count("no tokenizer.json; text is taken as bytes") == 1
    assert "ready: Gemma4ForCausalLM, 0." in log.read_text()
