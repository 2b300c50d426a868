"""What lm-eval asks of a completions server, on the embedded model in fp32: log-likelihoods by echo equal those of transformers."""

import time

import pytest
import torch
from api_server import running
from echo_model import MODEL_NAME
from transformers import AutoTokenizer, Gemma3ForCausalLM

from inference_server.checkpoints.embedded import prepare_embedded
from inference_server.config import Settings
from inference_server.server import load_model

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]

CONTEXTS = [
    "The capital of France is",
    "def add(a, b):\n    return",
    "Water boils at",
    "Once upon a time, in a village by the sea,",
    "Die Hauptstadt von Deutschland ist",
]
CONTINUATIONS = [
    " Paris.",
    " a + b",
    " one hundred degrees",
    " there lived an old fisherman and his wife",
    " Berlin",
    " 東京",
    " 42",
    "!",
    " 🦊",
    " nothing",
]


def test_fifty_loglikelihoods_are_those_of_transformers() -> None:
    settings = Settings(_env_file=None, model_name="embedded", dtype="float32", kv_cache_num_blocks=256)  # type: ignore[call-arg]
    folder = prepare_embedded(settings.cache_dir, progress=False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reference = Gemma3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with running(load=lambda: load_model(settings)) as server:
        end = time.monotonic() + 300
        while server.client.get("/ready").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.2)
        for context in CONTEXTS:
            for continuation in CONTINUATIONS:
                before = tokenizer(context).input_ids
                token_ids = before + tokenizer(continuation, add_special_tokens=False).input_ids
                with torch.inference_mode():
                    logprobs = reference(torch.tensor([token_ids])).logits[0].log_softmax(-1)
                expected = [logprobs[i - 1, token_ids[i]].item() for i in range(len(before), len(token_ids))]
                greedy = all(int(logprobs[i - 1].argmax()) == token_ids[i] for i in range(len(before), len(token_ids)))
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
                # As lm-eval reads it: from the context's length on, but for the one token that was generated.
                ours, top = answer["token_logprobs"][len(before) : -1], answer["top_logprobs"][len(before) : -1]
                assert ours == pytest.approx(expected, abs=1e-3)
                assert all(value == max(best.values()) for value, best in zip(ours, top, strict=True)) == greedy
