"""Log-probabilities of drawn tokens and of prompts, under chunked prefill and preemption, against transformers' own."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from engine_fakes import RecordList, loaded, merged, run_dry, scheduled
from engine_fakes import engine_on as echo_engine_on
from penalised_runs import VOCAB, requests_of, tiny_model
from real_engines import backend_of, engine_on

from inference_server.core.logprobs import TokenLogprobs
from inference_server.core.request import FinishReason, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams

PROMPT = [5 * i % VOCAB for i in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny_model().save_pretrained(path)
    return path


def assert_scores(tokens: list[int], start: int, scores: list[TokenLogprobs], number: int) -> None:
    """Compare with transformers. scores: of tokens[start:], each with its `number` likeliest tokens."""
    with torch.inference_mode():
        logprobs = tiny_model()(torch.tensor([tokens])).logits[0].log_softmax(-1)
    assert [score.token_id for score in scores] == tokens[start:]
    for position, score in enumerate(scores, start):
        row = logprobs[position - 1]
        assert score.logprob == pytest.approx(row[score.token_id].item(), abs=1e-4)
        assert [token for token, _ in score.top] == row.topk(number).indices.tolist()
        assert [value for _, value in score.top] == pytest.approx(row.topk(number).values.tolist(), abs=1e-4)


@pytest.mark.parametrize("name", ["paged", "transformers", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_drawn_tokens_report_the_models_own_probabilities(folder: Path, name: str) -> None:
    sink, numbers, requests = RecordList(), [None, 0, 1, 5], list(requests_of(Random(5), 12))
    for n, request in enumerate(requests):
        request.sampling = replace(request.sampling, logprobs=numbers[n % 4])
    engine = engine_on(backend_of(name, folder), num_blocks=14, sink=sink)
    for request in requests:
        engine.add(request)
    for n, (request_id, deltas) in enumerate(sorted(run_dry(engine).items(), key=lambda item: int(item[0][1:]))):
        whole, prompt = merged(deltas), requests[n].token_ids[: requests[n].num_prompt_tokens]
        assert request_id == requests[n].request_id
        if (number := numbers[n % 4]) is None:
            assert whole.logprobs == []
        else:
            assert_scores(prompt + whole.token_ids, len(prompt), whole.logprobs, number)
    assert sum(record.num_preemptions for record in sink.requests) > 0


def test_a_prompt_is_scored_in_chunks_and_never_from_the_cache(folder: Path) -> None:
    sink = RecordList()
    engine = engine_on(backend_of("paged", folder), num_blocks=60, sink=sink)
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=3, prompt_logprobs=3, return_prompt=True)
    for n in range(3):
        engine.add(ScheduledRequest(f"r{n}", list(PROMPT), replace(params, max_tokens=6 * (n != 1)), 100.0))
        [deltas] = run_dry(engine).values()
        whole = merged(deltas)
        assert whole.prompt is not None
        assert whole.prompt.token_ids == PROMPT
        assert_scores(PROMPT, 1, whole.prompt.logprobs, 3)
        assert len(whole.logprobs) == len(whole.token_ids) == 6 * (n != 1)
    assert [record.cached_tokens for record in sink.requests] == [0, 0, 0]


def test_no_new_token_is_a_prompt_without_an_answer() -> None:
    engine = echo_engine_on(loaded())
    engine.add(scheduled("abc", max_tokens=0, return_prompt=True))
    whole = merged(run_dry(engine)["r"])
    assert (whole.text, whole.token_ids, whole.finish_reason) == ("", [], FinishReason.LENGTH)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 0
    assert whole.prompt is not None
    assert len(whole.prompt.token_ids) == 4
