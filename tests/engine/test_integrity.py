"""The recount of all books when the engine has nothing left to do: off by default, silent if all is well, else the engine dies."""

from collections.abc import Mapping

import pytest
from engine_fakes import EchoBackend, VirtualClock, loaded, merged, scheduled, scheduler_of

from inference_server.core.options import EngineOptions
from inference_server.core.outputs import OutputDelta
from inference_server.core.plan import StepPlan
from inference_server.engine.engine import Engine, EngineState


def run_one(*, check: bool, leak: bool) -> tuple[Engine, list[OutputDelta], int]:
    """Run one request, and stop the engine once it has answered. Returns also how often the books were recounted."""
    scheduler = scheduler_of()
    num_checks, deltas = 0, []
    recount = scheduler.check_integrity

    def counted(unfinished: object) -> None:
        nonlocal num_checks
        num_checks += 1
        recount(unfinished)  # type: ignore[arg-type]

    def lose_a_block(plan: StepPlan) -> None:
        if leak and plan.step_id == 1:
            scheduler._cache._pool.allocate("nobody", [1])

    def hand_over(new: Mapping[str, OutputDelta]) -> None:
        deltas.extend(new.values())
        if any(delta.terminal for delta in new.values()):
            engine.stop()

    scheduler.check_integrity = counted  # type: ignore[method-assign]
    model = loaded(EchoBackend(before_launch=lose_a_block), scheduler)
    engine = Engine(lambda: model, EngineOptions(check_integrity=check), clock=VirtualClock())
    engine.add(scheduled("abc"))
    engine.run(hand_over)
    return engine, deltas, num_checks


def test_a_lost_block_ends_the_engine_once_the_request_has_its_answer(caplog: pytest.LogCaptureFixture) -> None:
    engine, deltas, num_checks = run_one(check=True, leak=True)
    assert (engine.state, num_checks) == (EngineState.DEAD, 1)
    assert merged(deltas).text == "abc" and merged(deltas).error is None
    assert "a used block is in no table" in caplog.text


@pytest.mark.parametrize(("check", "leak", "num_checks"), [(True, False, 1), (False, True, 0)])
def test_it_costs_one_recount_an_idle_spell_and_nothing_when_off(check: bool, leak: bool, num_checks: int) -> None:
    engine, deltas, counted = run_one(check=check, leak=leak)
    assert (engine.state, counted) == (EngineState.STOPPED, num_checks)
    assert merged(deltas).text == "abc"
