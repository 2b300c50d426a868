"""The engine without a thread: ends, deadlines, failures and records, step by step on a virtual clock."""

import pytest
from engine_fakes import EOS, EchoBackend, RecordList, VirtualClock, engine_on, loaded, merged, run_dry, scheduled, scheduler_of

from inference_server.core.errors import (
    DeadlineExceededError,
    EngineDeadError,
    InferenceServerError,
    OverloadedError,
    PromptTooLongError,
    RequestAbortedError,
    StepFailedError,
)
from inference_server.core.options import EngineOptions
from inference_server.core.plan import StepPlan
from inference_server.core.request import FinishReason
from inference_server.engine.engine import Engine, EngineState
from inference_server.tokenization.tokenizer import ByteTokenizer


def test_every_request_gets_one_terminal_delta_and_it_is_the_last(overlap: bool) -> None:
    engine = engine_on(loaded(overlap=overlap))
    for n in range(30):
        engine.add(scheduled("x" * n + "y", f"r{n}", max_tokens=n % 7 + 1))
    seen = run_dry(engine)
    assert len(seen) == 30
    for deltas in seen.values():
        assert [d.terminal for d in deltas] == [False] * (len(deltas) - 1) + [True]


def test_overlap_keeps_one_step_in_flight_and_bills_no_dropped_token() -> None:
    backend, sink = EchoBackend(), RecordList()
    engine = engine_on(loaded(backend, overlap=True), sink=sink)
    engine.add(scheduled("abc"))
    assert engine.step() == {}
    assert backend.num_launches == 1
    assert engine.step()["r"].text == "a"
    assert backend.num_launches == 2
    whole = merged(run_dry(engine)["r"])
    assert (whole.text, whole.token_ids) == ("bc", [*b"bc", EOS])
    assert sink.requests[0].output_tokens == 4
    assert [s.num_returned_tokens for s in sink.steps] == [1, 1, 1, 1, 0]


def test_snapshot_shows_the_blocks_freed_when_the_terminal_delta_comes(overlap: bool) -> None:
    engine = engine_on(loaded(overlap=overlap))
    engine.add(scheduled("abc"))
    while not (deltas := engine.step()).get("r") or not deltas["r"].terminal:
        pass
    assert engine.snapshot.cache.used_blocks == 0
    assert engine.snapshot.scheduler.num_active == 0


@pytest.mark.parametrize("steps_before", [0, 1, 2, 4])
def test_abort_frees_within_one_step(steps_before: int, overlap: bool) -> None:
    sink = RecordList()
    engine = engine_on(loaded(overlap=overlap), sink=sink)
    engine.add(scheduled("abcdefgh"))
    for _ in range(steps_before):
        engine.step()
    engine.abort("r")
    engine.abort("r")
    delta = engine.step()["r"]
    assert isinstance(delta.error, RequestAbortedError)
    assert (engine.snapshot.scheduler.num_active, engine.snapshot.cache.used_blocks) == (0, 0)
    assert run_dry(engine) == {}
    assert [(r.finish_reason, r.error_code) for r in sink.requests] == [(FinishReason.ABORT, "aborted")]


def test_abort_of_a_queued_request_leaves_the_running_one_alone() -> None:
    engine = engine_on(loaded(scheduler=scheduler_of(max_batch_size=1)))
    engine.add(scheduled("running", "a"))
    engine.add(scheduled("queued", "b"))
    engine.step()
    engine.abort("b")
    engine.abort("never existed")
    seen = run_dry(engine)
    assert isinstance(seen["b"][0].error, RequestAbortedError)
    assert merged(seen["a"]).text == "unning"


def test_abort_after_the_end_does_nothing() -> None:
    engine = engine_on(loaded())
    engine.add(scheduled("a"))
    run_dry(engine)
    engine.abort("r")
    assert run_dry(engine) == {}


def test_an_idle_engine_outlives_a_deadline_beyond_the_clock_s_range() -> None:
    engine = Engine(loaded, EngineOptions(admission_deadline_s=1e12, request_deadline_s=1e308))
    engine.add(scheduled("abc"))
    calls_without_work = 0

    def hand_over(_: object) -> None:
        nonlocal calls_without_work
        calls_without_work += not engine.has_work
        if calls_without_work == 2:  # the first hands over the end of the request; from the second on the thread waits
            engine.stop()

    engine.run(hand_over)
    assert engine.state is EngineState.STOPPED


def test_admission_deadline_refuses_only_requests_that_wait() -> None:
    clock = VirtualClock()
    model = loaded(scheduler=scheduler_of(max_batch_size=1))
    engine = engine_on(model, clock, options=EngineOptions(admission_deadline_s=5.0))
    engine.add(scheduled("running", "a"))
    engine.add(scheduled("queued", "b"))
    engine.step()
    clock.now += 4.9
    assert "b" not in engine.step()
    clock.now += 0.2
    assert isinstance(engine.step()["b"].error, OverloadedError)
    assert merged(run_dry(engine)["a"]).finish_reason is FinishReason.STOP


def test_request_deadline_before_any_text_is_an_error() -> None:
    clock = VirtualClock()
    engine = engine_on(loaded(), clock, options=EngineOptions(request_deadline_s=10.0))
    engine.add(scheduled("ENDing", stop=("ENDLESS",)))
    engine.step()
    engine.step()
    clock.now += 11
    assert isinstance(engine.step()["r"].error, DeadlineExceededError)
    assert not engine.has_work


def test_request_deadline_after_text_finishes_with_timeout_and_what_was_held_back() -> None:
    clock, sink = VirtualClock(), RecordList()
    engine = engine_on(loaded(), clock, sink, EngineOptions(request_deadline_s=10.0))
    engine.add(scheduled("abENDLESS", stop=("ENDLESS",)))
    text = "".join(engine.step()["r"].text for _ in range(4))
    clock.now += 11
    last = engine.step()["r"]
    assert (text, last.text, last.finish_reason) == ("ab", "EN", FinishReason.TIMEOUT)
    assert last.usage is not None
    assert sink.requests[0].finish_reason is FinishReason.TIMEOUT


def test_failed_step_costs_its_requests_only(overlap: bool) -> None:
    def fail_once(plan: StepPlan) -> None:
        if any(r.request_id == "bad" for r in plan.requests):
            raise StepFailedError("out of memory")

    backend = EchoBackend(before_launch=fail_once)
    engine = engine_on(loaded(backend, scheduler_of(max_batch_size=1), overlap=overlap))
    engine.add(scheduled("bad", "bad"))
    engine.add(scheduled("good", "good"))
    seen = run_dry(engine)
    assert isinstance(seen["bad"][0].error, StepFailedError)
    assert merged(seen["good"]).text == "good"


def test_step_that_fails_in_collect_costs_its_requests_only(overlap: bool) -> None:
    def fail_second(plan: StepPlan) -> None:
        if plan.step_id == 2:
            raise StepFailedError("device hiccup")

    engine = engine_on(loaded(EchoBackend(before_collect=fail_second), overlap=overlap))
    engine.add(scheduled("first", "first"))
    engine.step()
    engine.step()
    engine.step()
    engine.add(scheduled("second", "second"))
    engine.step()
    assert merged(run_dry(engine)["second"]).text.endswith("econd")
    assert engine.state is EngineState.READY


def test_fault_in_one_text_ends_that_request_alone() -> None:
    class Brittle(ByteTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            if token_id == ord("!"):
                raise ValueError("no such piece")
            return super().token_bytes(token_id)

    engine = engine_on(loaded(tokenizer=Brittle()))
    engine.add(scheduled("ab!", "bad"))
    engine.add(scheduled("abcd", "good"))
    seen = run_dry(engine)
    assert type(seen["bad"][-1].error) is InferenceServerError
    assert merged(seen["good"]).text == "abcd"
    assert engine.snapshot.scheduler.num_active == 0


def test_request_that_the_scheduler_refuses_ends_with_its_reason() -> None:
    engine = engine_on(loaded(scheduler=scheduler_of(num_blocks=4)))
    engine.add(scheduled("longer than sixteen tokens"))
    assert isinstance(run_dry(engine)["r"][0].error, PromptTooLongError)


def test_records_count_from_arrival() -> None:
    clock, sink = VirtualClock(), RecordList()

    def tick(plan: StepPlan) -> None:
        clock.now += 0.5

    engine = engine_on(loaded(EchoBackend(before_launch=tick)), clock, sink)
    engine.add(scheduled("ab", arrival_time=99.0))
    usage = merged(run_dry(engine)["r"]).usage
    record = sink.requests[0]
    assert usage is not None
    assert (usage.ttft_s, usage.total_s) == (1.5, 2.5)
    assert (record.first_token_time, record.admitted_time, record.end_time, record.output_tokens) == (100.5, 100.0, 101.5, 3)
    assert [s.inter_token_s for s in sink.steps] == [{}, {0.5: 1}, {0.5: 1}]
    assert [(s.num_rows, s.num_tokens) for s in sink.steps] == [(1, 3), (1, 1), (1, 1)]


def test_run_hands_over_a_terminal_delta_for_every_request_when_the_thread_dies() -> None:
    def explode(plan: StepPlan) -> None:
        raise ZeroDivisionError

    backend = EchoBackend(before_launch=explode)
    engine = Engine(lambda: loaded(backend), EngineOptions(), clock=VirtualClock())
    engine.add(scheduled("a", "a"))
    engine.add(scheduled("b", "b"))
    seen: dict[str, object] = {}
    engine.run(seen.update)
    assert engine.state is EngineState.DEAD
    assert sorted(seen) == ["a", "b"]
    assert all(isinstance(d.error, EngineDeadError) for d in seen.values())  # type: ignore[attr-defined]
    assert backend.closed


def test_with_overlap_deltas_go_out_while_the_next_step_runs_and_once_though_the_thread_dies() -> None:
    def explode(plan: StepPlan) -> None:
        if plan.step_id == 5:
            raise ZeroDivisionError

    backend = EchoBackend(before_collect=explode)
    engine = Engine(lambda: loaded(backend, overlap=True), EngineOptions(), clock=VirtualClock())
    engine.add(scheduled("abcdefgh"))
    handed: list[tuple[int, str]] = []
    engine.run(lambda deltas: handed.extend((backend.num_launches, delta.text) for delta in deltas.values()))
    assert handed == [(3, "a"), (4, "b"), (5, "c"), (6, "d"), (6, "")]
