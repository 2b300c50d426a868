"""What a row draws: from the right distribution, the same token for the same key, whatever its neighbours are."""

import dataclasses

import pytest
import torch

from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling.noise import hash_tokens, row_keys
from inference_server.sampling.reference import allowed_set
from inference_server.sampling.sampler import Sampler, _draw_rows

MIXED = [
    SamplingParams(temperature=0.0),
    SamplingParams(seed=1),
    SamplingParams(seed=2, temperature=0.7, top_k=20),
    SamplingParams(seed=3, temperature=1.5, top_p=0.8),
    SamplingParams(temperature=0.0, top_k=5, top_p=0.1),
    SamplingParams(seed=2**64 - 1, top_k=50, top_p=0.9, min_p=0.02),
]


def random_logits(rows: int, vocab_size: int = 1000) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(rows)) * 2


def chi_square_bound(freedom: int) -> float:
    """Five standard deviations above the mean of the chi-square distribution."""
    return freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    logits, draws = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5, 2.0, -3.0]), 20_000
    params = SamplingParams(temperature=temperature, seed=11)
    keys = row_keys([params.seed] * draws, range(draws), logits.device)
    tokens = _draw_rows(logits.expand(draws, -1), [params] * draws, keys, hash_tokens(torch.arange(7)))
    expected = (logits / temperature).softmax(0) * draws
    statistic = ((tokens.bincount(minlength=7) - expected) ** 2 / expected).sum().item()
    assert statistic < chi_square_bound(6)


def test_frequencies_follow_the_renormalised_set() -> None:
    logits, sampler, draws = random_logits(1, 50), Sampler(), 3000
    params = SamplingParams(seed=5, top_k=8, top_p=0.9)
    tokens = torch.cat([sampler(logits, [params], [position]) for position in range(draws)])
    allowed = sorted(allowed_set(logits[0], params))
    expected = logits[0, allowed].softmax(0) * draws
    counts = tokens.bincount(minlength=50)[allowed]
    assert counts.sum() == draws
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    assert statistic < chi_square_bound(len(allowed) - 1)


def test_greedy_takes_the_lower_id_and_ignores_the_rest() -> None:
    logits = torch.zeros(2, 300_000)
    logits[0, [123_456, 299_999]] = 1.0
    greedy = SamplingParams(temperature=0.0, seed=9, top_k=1, min_p=0.5)
    assert Sampler()(logits, [greedy, greedy], [0, 0]).tolist() == [123_456, 0]
    assert Sampler()(logits, [greedy, SamplingParams(top_k=1)], [0, 0]).tolist() == [123_456, 0]


def test_the_lowest_temperatures_are_as_good_as_greedy() -> None:
    logits = random_logits(3)
    params = [SamplingParams(temperature=1e-30, seed=1), SamplingParams(temperature=1e-30, top_p=0.9), SamplingParams(temperature=1e-6)]
    best = logits.argmax(-1).tolist()
    assert Sampler()(logits, params, [0, 1, 2]).tolist() == best
    keys = row_keys([p.seed for p in params], [0, 1, 2], logits.device)
    assert _draw_rows(logits, params, keys, hash_tokens(torch.arange(1000))).tolist() == best


def test_a_row_draws_alone_what_it_draws_in_a_batch() -> None:
    logits, sampler = random_logits(len(MIXED)), Sampler()
    positions = [3, 1, 4, 1, 5, 9]
    batch = sampler(logits, MIXED, positions)
    alone = [sampler(logits[i : i + 1], [p], [positions[i]]).item() for i, p in enumerate(MIXED)]
    order = [4, 2, 0, 5, 1, 3]
    shuffled = sampler(logits[order], [MIXED[i] for i in order], [positions[i] for i in order])
    assert batch.tolist() == alone
    assert shuffled.tolist() == [alone[i] for i in order]


def test_rows_at_once_draw_what_single_rows_draw() -> None:
    params = [dataclasses.replace(p, temperature=p.temperature or 1.0) for p in MIXED] * 5
    logits, positions = random_logits(len(params)), list(range(len(params)))
    keys = row_keys([p.seed for p in params], positions, logits.device)
    at_once = _draw_rows(logits, params, keys, hash_tokens(torch.arange(1000)))
    assert at_once.tolist() == Sampler()(logits, params, positions).tolist()


def test_seed_and_position_both_matter() -> None:
    logits, sampler = torch.zeros(200, 5000), Sampler()
    by_position = sampler(logits, [SamplingParams(seed=1)] * 200, range(200))
    by_seed = sampler(logits, [SamplingParams(seed=seed) for seed in range(200)], [1] * 200)
    assert by_position.unique().numel() > 180
    assert by_seed.unique().numel() > 180
    assert torch.equal(by_position, sampler(logits, [SamplingParams(seed=1)] * 200, range(200)))


def test_logits_are_left_as_they_are() -> None:
    logits = random_logits(len(MIXED))
    before = logits.clone()
    Sampler()(logits, MIXED, [0] * len(MIXED))
    assert torch.equal(logits, before)


def test_vocabulary_may_change() -> None:
    sampler = Sampler()
    for vocab_size in (10, 20, 10):
        assert sampler(torch.zeros(1, vocab_size), [SamplingParams(seed=1)], [0]).item() < vocab_size
