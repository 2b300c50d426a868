"""What lm-eval asks a completions server, on the embedded model in fp32: log-likelihoods by echo equal those of transformers."""

import time

import pytest
from api_server import running
from echo_model import MODEL_NAME
from loglikelihoods import ITEMS, Reference
from transformers import AutoTokenizer

from inference_server.checkpoints.embedded import prepare_embedded
from inference_server.config import Settings
from inference_server.server import load_model

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]


def test_fifty_loglikelihoods_are_those_of_transformers() -> None:
    settings = Settings(_env_file=None, model_name="embedded", dtype="float32", kv_cache_num_blocks=256)  # type: ignore[call-arg]
    folder = prepare_embedded(settings.cache_dir, progress=False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reference = Reference(folder)
    with running(load=lambda: load_model(settings)) as server:
        end = time.monotonic() + 300
        while server.client.get("/ready").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.2)
        for context, continuation in ITEMS:
            before = tokenizer(context).input_ids
            token_ids = before + tokenizer(continuation, add_special_tokens=False).input_ids
            expected, greedy = reference.score(token_ids, len(before))
            body = {
                "model": MODEL_NAME,
                "prompt": token_ids,
                "temperature": 0,
                "max_tokens": 1,
                "logprobs": 1,
                "echo": True,
                "seed": 1234,
            }
            answer = server.client.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
            # As lm-eval reads it: from the end of the context on, without the one token that was generated.
            ours, top = answer["token_logprobs"][len(before) : -1], answer["top_logprobs"][len(before) : -1]
            assert ours == pytest.approx(expected, abs=1e-3)
            assert all(value == max(best.values()) for value, best in zip(ours, top, strict=True)) == greedy
