"""Adjustment, draw and scores in one call: host and device give the same tokens."""

from random import Random

import pytest
import torch
from random_requests import VOCAB, random_request

from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling.logprobs import values_by_row
from inference_server.sampling.token_rows import SamplingRows
from inference_server.sampling.token_sampler import TokenSampler

WORDS = -(-VOCAB // 32)


@pytest.mark.parametrize("seed", range(3))
def test_both_ways_draw_the_same_tokens(seed: int) -> None:
    pytest.importorskip("triton", reason="triton is not installed: its kernels exist on Linux only")
    from inference_server.sampling.device_token_sampler import DeviceTokenSampler

    random, generator = Random(seed), torch.Generator().manual_seed(seed)
    requests = [random_request(random, slot) for slot in range(5)]
    masks = [random.randbytes(4 * WORDS) if row % 2 else None for row in range(5)]
    rows = SamplingRows(requests, [len(request.token_ids) for request in requests], range(5), masks)
    logits = 4 * torch.randn(5, VOCAB, generator=generator)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    expected = TokenSampler(5)(logits.clone(), rows).token_ids
    assert DeviceTokenSampler(5, VOCAB, device)(logits.clone().to(device), rows).tolist() == expected.tolist()


def test_scores_are_of_the_raw_distribution_and_only_of_rows_that_ask() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0))
    forced = SamplingParams(temperature=0.0, logit_bias=((7, 100.0),), repetition_penalty=2.0, logprobs=2)
    requests = [ScheduledRequest(f"r{n}", [7, 7], p, 0.0) for n, p in enumerate([SamplingParams(), forced, forced])]
    before = logits.clone()
    sampled = TokenSampler(3)(logits, SamplingRows(requests, [2, 2, 2], [0, 1, 2]))
    values = values_by_row(sampled.scores, requests, [4, 5, 6])
    logprobs = before.log_softmax(-1)
    assert list(values) == [5, 6]
    for row, value in ((1, values[5]), (2, values[6])):
        assert value.token_id == 7
        assert value.logprob == pytest.approx(logprobs[row, 7].item())
        assert [token for token, _ in value.top] == logprobs[row].topk(2).indices.tolist()


def test_a_forbidden_token_scores_minus_infinity_and_never_nan() -> None:
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, 3] = 0.0
    request = ScheduledRequest("r", [1], SamplingParams(temperature=0.0, logprobs=3), 0.0)
    [value] = values_by_row(TokenSampler(1)(logits, SamplingRows([request], [1], [0])).scores, [request], [0]).values()
    assert (value.token_id, value.logprob) == (3, 0.0)
    assert [score for _, score in value.top] == [0.0, -torch.inf, -torch.inf]
