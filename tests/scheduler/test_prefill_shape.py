"""How a prompt budget is shared in each prefill mode."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_server.core.options import PrefillMode
from inference_server.scheduler.prefill_shape import shape_prefill

REMAINING = st.lists(st.integers(1, 50), max_size=8)
CHUNKED_MODES = [PrefillMode.CHUNKED, PrefillMode.MIXED]


@pytest.mark.parametrize("mode", CHUNKED_MODES)
@settings(deadline=None)
@given(remaining=REMAINING, budget=st.integers(0, 60), chunk=st.integers(1, 20))
def test_chunks_stay_within_budget_and_use_it_up(mode: PrefillMode, remaining: list[int], budget: int, chunk: int) -> None:
    shares = shape_prefill(mode, remaining, budget, chunk)
    wanted = [min(tokens, chunk) for tokens in remaining]
    assert all(0 <= share <= most for share, most in zip(shares, wanted, strict=True))
    assert sum(shares) == min(budget, sum(wanted))
    assert not (remaining and budget) or shares[0] >= min(wanted[0], (budget + 1) // 2)


@settings(deadline=None)
@given(remaining=REMAINING, budget=st.integers(0, 60))
def test_whole_prompts_only(remaining: list[int], budget: int) -> None:
    batched = shape_prefill(PrefillMode.BATCHED, remaining, budget, 1)
    alone = shape_prefill(PrefillMode.MONOLITHIC, remaining, budget, 1)
    assert all(share in (0, tokens) for share, tokens in zip(batched, remaining, strict=True))
    assert sum(batched) <= budget or batched == alone
    assert alone == ([remaining[0]] + [0] * (len(remaining) - 1) if remaining and budget else [0] * len(remaining))


@pytest.mark.parametrize(
    ("mode", "remaining", "shares"),
    [
        (PrefillMode.MIXED, [1000], [8]),
        (PrefillMode.MIXED, [1000, 3], [8, 3]),
        (PrefillMode.MIXED, [1000, 900, 3], [8, 5, 3]),
        (PrefillMode.MIXED, [3, 1000, 1000], [3, 8, 5]),
        (PrefillMode.BATCHED, [10, 10, 4], [10, 0, 4]),
        (PrefillMode.BATCHED, [20, 1], [20, 0]),
        (PrefillMode.MONOLITHIC, [20, 1], [20, 0]),
    ],
)
def test_examples(mode: PrefillMode, remaining: list[int], shares: list[int]) -> None:
    assert shape_prefill(mode, remaining, budget=16, chunk=8) == shares
