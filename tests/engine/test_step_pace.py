"""How long a step may take, by the pace of the steps before it."""

import pytest

from inference_server.core.plan import StepKind
from inference_server.core.records import StepRecord
from inference_server.engine.step_pace import StepPace


def step(num_tokens: int, seconds: float) -> StepRecord:
    return StepRecord(1, StepKind.MIXED, 100.0, 100.0 + seconds, 1, num_tokens, 1, 0)


def test_before_anything_is_measured_a_token_has_a_second() -> None:
    assert StepPace().allowance_s(303) == 303


@pytest.mark.parametrize("s_per_token", [0.00002, 0.005, 0.9])
def test_the_allowance_follows_the_pace_and_forgets_what_was_assumed(s_per_token: float) -> None:
    pace = StepPace()
    for _ in range(50):
        pace.on_step(step(64, 64 * s_per_token))
    assert pace.allowance_s(2048) == pytest.approx(4 * 2048 * s_per_token, abs=0.1)


def test_one_step_that_compiles_does_not_count_for_long() -> None:
    pace = StepPace()
    pace.on_step(step(3, 60.0))
    assert pace.allowance_s(2048) > 30_000
    for _ in range(50):
        pace.on_step(step(1, 0.01))
    assert pace.allowance_s(2048) < 85
