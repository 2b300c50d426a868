"""The histories of requests as the engine records them, on a virtual clock."""

import pytest
from engine_fakes import EchoBackend, RecordList, VirtualClock, loaded, run_dry, scheduled, scheduler_of

from inference_server.core.options import EngineOptions
from inference_server.core.plan import StepPlan
from inference_server.core.records import RequestRecord
from inference_server.core.request import RequestStatus
from inference_server.core.request_history import EventKind
from inference_server.engine.engine import Engine


def engine_of(sink: RecordList, overlap: bool = False, **options: int) -> Engine:
    """An engine whose steps last one second each."""
    clock = VirtualClock()

    def tick(plan: StepPlan) -> None:
        clock.now += 1

    backend = EchoBackend(before_collect=tick)
    model = loaded(backend, scheduler_of(**options), overlap=overlap)
    engine = Engine(lambda: model, EngineOptions(), [sink], clock)
    engine.load()
    return engine


@pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlap"])
def test_every_chunk_of_a_prompt_is_in_it(overlap: bool) -> None:
    sink = RecordList()
    engine = engine_of(sink, overlap, prefill_chunk_size=16)
    engine.add(scheduled("x" * 39))  # 40 tokens with begin of text
    run_dry(engine)
    (record,) = sink.requests
    chunks = [event for event in record.events if event.kind is EventKind.PREFILL]
    assert [event.num_tokens for event in chunks] == [16, 16, 8]
    assert all(event.num_rows == 1 for event in chunks)
    assert chunks[-1].end_time == record.first_token_time
    assert [event.end_time - event.start_time for event in chunks] == [1, 1, 1]
    assert record.last_token_time == record.end_time
    assert sum(step.num_prefill_chunks for step in sink.steps) == 3
    assert sum(step.num_prefill_tokens for step in sink.steps) == 40


def test_a_gate_and_a_preemption_are_in_it() -> None:
    sink = RecordList()
    engine = engine_of(sink, num_blocks=48)
    for name in ("a", "b", "c"):
        engine.add(scheduled("y" * 60, request_id=name, max_tokens=60, stop_token_ids=frozenset()))
    run_dry(engine)
    events = [event for record in sink.requests for event in record.events]
    assert {event.gate for event in events if event.kind is EventKind.HELD} == {"kv_blocks"}
    preempted = [record for record in sink.requests if record.num_preemptions]
    assert preempted
    for record in sink.requests:
        assert sum(event.kind is EventKind.PREEMPTED for event in record.events) == record.num_preemptions
        assert [event.start_time for event in record.events] == sorted(event.start_time for event in record.events)


def test_an_open_request_can_be_looked_at() -> None:
    engine = engine_of(RecordList(), max_batch_size=1)
    engine.add(scheduled("abc", request_id="first"))
    engine.add(scheduled("abc", request_id="second"))
    engine.step()
    seen: list[RequestRecord] = []
    engine.inspect(seen.extend)
    engine.step()
    assert [(record.request_id, record.status) for record in seen] == [("first", RequestStatus.RUNNING), ("second", RequestStatus.WAITING)]
    assert all(record.finish_reason is None for record in seen)
    assert (seen[0].output_tokens, seen[0].num_computed_tokens) == (1, 4)
    run_dry(engine)
    engine.inspect(seen.append)  # type: ignore[arg-type]
    engine.step()
    assert seen[-1] == ()
