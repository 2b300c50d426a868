"""Both fast searches find exactly the sets of the sort-based reference, which in turn agrees with transformers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling import narrowing
from inference_server.sampling.bisection import allowed_mask
from inference_server.sampling.narrowing import allowed_tokens
from inference_server.sampling.reference import allowed_set

CASES = [
    SamplingParams(top_k=1),
    SamplingParams(top_k=50),
    SamplingParams(top_k=10_000_000),
    SamplingParams(top_p=1e-9),
    SamplingParams(top_p=0.5),
    SamplingParams(top_p=0.999),
    SamplingParams(min_p=0.05),
    SamplingParams(min_p=1.0),
    SamplingParams(top_k=400, top_p=0.9),
    SamplingParams(top_k=400, top_p=0.9, min_p=0.1),
    SamplingParams(top_p=0.97, min_p=0.002),
    SamplingParams(),
]


def assert_same_sets(values: torch.Tensor, params: list[SamplingParams]) -> None:
    mask = allowed_mask(values, params)
    for row, p in enumerate(params):
        expected = sorted(allowed_set(values[row], p))
        assert expected
        assert allowed_tokens(values[row], p.top_k, p.top_p, p.min_p).tolist() == expected
        assert mask[row].nonzero().squeeze(1).tolist() == expected


def random_values(kind: str, vocab_size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(vocab_size)
    values = torch.randn(len(CASES), vocab_size, generator=generator)
    match kind:
        case "smooth":
            return values * 3
        case "peaked":
            return values.index_fill(1, torch.tensor([vocab_size // 2]), 30.0)
        case "ties":
            return values.round()
        case "constant":
            return torch.full_like(values, -1.5)
        case "masked":
            values[:, 1:] = values[:, 1:].masked_fill(torch.rand(values[:, 1:].shape, generator=generator) < 0.7, -torch.inf)
            return values
        case "zeros":
            return values.sign() * 0.0
        case _:
            return values.sign() * values.abs().pow(20)


@pytest.mark.parametrize("kind", ["smooth", "peaked", "ties", "constant", "masked", "zeros", "wide"])
@pytest.mark.parametrize("vocab_size", [3, 257, 5003])
def test_searches_equal_reference(kind: str, vocab_size: int) -> None:
    assert_same_sets(random_values(kind, vocab_size), CASES)


logit = st.one_of(st.integers(-4, 4).map(float), st.floats(-30, 30, width=32), st.just(-torch.inf))


@settings(max_examples=150, deadline=None)
@given(
    row=st.lists(logit, min_size=1, max_size=40).filter(lambda row: max(row) > -torch.inf),
    top_k=st.integers(0, 45),
    top_p=st.floats(1e-6, 1.0),
    min_p=st.floats(0.0, 1.0),
)
def test_searches_equal_reference_for_any_row(row: list[float], top_k: int, top_p: float, min_p: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(narrowing, "_SORT_BELOW", 2)
        assert_same_sets(torch.tensor([row]), [SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)])


def test_equal_logits_keep_the_lower_ids() -> None:
    values = torch.zeros(1, 1000)
    values[0, 700] = 5.0
    assert allowed_tokens(values[0], 4, 1.0, 0.0).tolist() == [0, 1, 2, 700]
    assert allowed_tokens(torch.zeros(1000), 0, 0.005, 0.0).tolist() == [0, 1, 2, 3, 4]
    assert_same_sets(values, [SamplingParams(top_k=4)])


def test_top_p_counts_only_what_top_k_left() -> None:
    values = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert allowed_tokens(values, 2, 0.6, 0.0).tolist() == [0, 1]
    assert allowed_tokens(values, 2, 0.5, 0.0).tolist() == [0]
    assert allowed_tokens(values, 0, 0.65, 0.0).tolist() == [0, 1]


def test_nan_logits_end_the_search() -> None:
    assert allowed_tokens(torch.full((1000,), torch.nan), 3, 0.9, 0.0).numel() >= 1


@pytest.mark.parametrize("params", [p for p in CASES if p.top_k < 5003], ids=str)
def test_reference_agrees_with_transformers(params: SamplingParams) -> None:
    scores = random_values("smooth", 5003)[:1]
    expected = scores
    if params.top_k:
        expected = TopKLogitsWarper(params.top_k)(None, expected)
    if params.top_p < 1:
        expected = TopPLogitsWarper(params.top_p)(None, expected)
    if params.min_p:
        expected = MinPLogitsWarper(params.min_p)(None, expected)
    assert allowed_set(scores[0], params) == set(expected[0].isfinite().nonzero().squeeze(1).tolist())
