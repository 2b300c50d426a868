"""Masks, biases and penalties of a row against their definition in plain numbers, one token of the vocabulary at a time."""

from random import Random

import pytest
import torch
from random_requests import VOCAB, random_request

from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling.adjustment import adjust_logits, apply_masks


def naive(logits: list[float], params: SamplingParams, prompt: list[int], output: list[int]) -> list[float]:
    adjusted = []
    for token, logit in enumerate(logits):
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            logit = -torch.inf
        if len(output) < params.min_tokens and token in params.stop_token_ids:
            logit = -torch.inf
        logit += dict(params.logit_bias).get(token, 0.0)
        if token in prompt or token in output:
            logit = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
        logit -= params.frequency_penalty * output.count(token) + params.presence_penalty * (token in output)
        adjusted.append(logit)
    return adjusted


@pytest.mark.parametrize("seed", range(30))
def test_every_logit_is_that_of_the_definition(seed: int) -> None:
    random = Random(seed)
    requests = [random_request(random) for _ in range(4)]
    logits = 5 * torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(seed))
    before = logits.clone()
    adjusted = adjust_logits(logits, requests, [len(request.token_ids) for request in requests])
    assert torch.equal(logits, before)
    for row, request in enumerate(requests):
        prompt = request.token_ids[: request.num_prompt_tokens]
        expected = naive(logits[row].tolist(), request.sampling, prompt, request.output_token_ids)
        torch.testing.assert_close(adjusted[row], torch.tensor(expected))


def test_only_tokens_before_the_position_count() -> None:
    request = ScheduledRequest("r", [1, 2, 3, 4], SamplingParams(presence_penalty=1.0), 0.0, num_prompt_tokens=2)
    assert adjust_logits(torch.zeros(1, 6), [request], [3]).tolist() == [[0, 0, 0, -1, 0, 0]]


def test_rows_that_ask_for_nothing_cost_no_copy() -> None:
    logits = torch.zeros(1, VOCAB)
    request = ScheduledRequest("r", [1, 2], SamplingParams(stop_token_ids=frozenset({3}), top_k=5), 0.0)
    assert adjust_logits(logits, [request], [2]) is logits


def test_a_mask_forbids_by_bit_before_all_else() -> None:
    mask = bytes([0b101, *[0] * 11, 0b00010000, 0, 0, 0b10000000])
    request = ScheduledRequest("r", [1], SamplingParams(logit_bias=((1, 50.0),)), 0.0)
    logits = torch.zeros(2, 101)
    apply_masks(logits, [mask, None])
    adjusted = adjust_logits(logits, [request, request], [1, 1])
    assert adjusted[0].isfinite().nonzero().flatten().tolist() == [0, 2, 100]
    assert adjusted[1].tolist() == [0.0, 50.0, *[0.0] * 99]
