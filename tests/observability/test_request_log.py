"""The ring of ended requests: bounded, newest first, searched by either id."""

from inference_server.core.records import RequestRecord
from inference_server.core.request import FinishReason, RequestOrigin
from inference_server.core.request_history import MAX_EVENTS, EventKind, RequestHistory
from inference_server.observability.request_log import RequestLog


def record(number: int, client_id: str = "") -> RequestRecord:
    return RequestRecord(f"r{number}", RequestOrigin(client_id), FinishReason.STOP, None, 1, 0, 1, 0, number, number, number, number + 1.0)


def test_the_oldest_makes_room_and_the_newest_comes_first() -> None:
    log = RequestLog(capacity=3)
    for number in range(5):
        log.on_request(record(number))
    assert [r.request_id for r in log.latest(10)] == ["r4", "r3", "r2"]
    assert [r.request_id for r in log.latest(2)] == ["r4", "r3"]
    assert log.find("r1") is None
    assert log.find("r2") == record(2)


def test_a_clients_id_finds_its_newest_request_and_never_hides_a_servers_id() -> None:
    log = RequestLog()
    for number, client_id in enumerate(("trace", "other", "trace", "r0")):
        log.on_request(record(number, client_id))
    assert log.find("trace") == record(2, "trace")
    assert log.find("r0") == record(0, "trace")
    assert log.find("nobody") is None


def test_a_history_notes_a_gate_once_while_it_holds() -> None:
    history = RequestHistory()
    for now, gate in enumerate(("slots", "slots", "kv_blocks", "kv_blocks", "slots")):
        history.hold(gate, float(now))
    assert [(event.gate, event.start_time) for event in history.events] == [("slots", 0), ("kv_blocks", 2), ("slots", 4)]
    history.preempt(5.0)
    history.hold("slots", 6.0)
    assert [event.kind for event in history.events[-2:]] == [EventKind.PREEMPTED, EventKind.HELD]


def test_a_history_is_bounded_and_says_what_it_left_out() -> None:
    history = RequestHistory()
    for step in range(MAX_EVENTS + 7):
        history.prefill(step, step + 0.5, 512, 2)
    assert (len(history.events), history.num_dropped) == (MAX_EVENTS, 7)
