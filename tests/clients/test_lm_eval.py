"""`lm-eval` with `local-completions`: its log-likelihoods are those of transformers, and it can generate."""

import pytest
from loglikelihoods import ITEMS, Reference

from inference_server.checkpoints.embedded import prepare_embedded
from inference_server.config import Settings

Instance = pytest.importorskip("lm_eval.api.instance").Instance
LocalCompletionsAPI = pytest.importorskip("lm_eval.models.openai_completions").LocalCompletionsAPI
pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


def test_fifty_loglikelihoods_are_those_of_transformers(url: str) -> None:
    folder = prepare_embedded(Settings(_env_file=None).cache_dir, progress=False)  # type: ignore[call-arg]
    client = LocalCompletionsAPI(
        base_url=f"{url}/completions", model="embedded", tokenizer=str(folder), tokenizer_backend="huggingface", max_retries=1
    )
    reference = Reference(folder)
    found = client.loglikelihood([Instance("loglikelihood", {}, item, index) for index, item in enumerate(ITEMS)], disable_tqdm=True)
    for (context, continuation), (total, greedy) in zip(ITEMS, found, strict=True):
        before = client.tok_encode(context)
        logprobs, likeliest = reference.score(client.tok_encode(context + continuation), len(before))
        assert total == pytest.approx(sum(logprobs), abs=1e-3)
        assert greedy == likeliest
    generation = Instance("generate_until", {}, ("The capital of France is", {"until": ["."], "max_gen_toks": 16}), 0)
    (text,) = client.generate_until([generation], disable_tqdm=True)
    assert text and "." not in text
