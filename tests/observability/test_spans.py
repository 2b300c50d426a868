"""Spans of requests, read back from what was sent to a collector."""

import logging
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from ended_request import ENDED
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otlp_collector import Collector, attributes, collecting

from inference_server import __version__
from inference_server.core.clock import Clock
from inference_server.core.records import RequestRecord
from inference_server.core.request import FinishReason, RequestOrigin
from inference_server.core.request_history import EventKind, RequestEvent
from inference_server.core.sampling_params import SamplingParams
from inference_server.observability.batch_writer import BatchWriter
from inference_server.observability.run import Run
from inference_server.observability.spans import MAX_QUEUED, SpanExporter

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
RECORD = replace(
    ENDED,
    num_preemptions=1,
    events=(RequestEvent(EventKind.HELD, 100.0, 100.0, "slots"), RequestEvent(EventKind.PREFILL, 100.5, 102.0, num_tokens=3)),
    origin=replace(ENDED.origin, traceparent=f"00-{TRACE}-{PARENT}-01"),
    is_chat=True,
    reasoning_tokens=2,
    sampling=SamplingParams(temperature=0.5, top_k=40, max_tokens=9, stop=("a secret",)),
)
NEVER_RAN = RequestRecord("r2", RequestOrigin(), FinishReason.TIMEOUT, "overloaded", 7, 0, 0, 0, 100.0, None, None, 106.0)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with collecting() as found:
        yield found


@pytest.fixture(autouse=True)
def sdk_logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    yield logger
    logger.disabled = False


def exporting(endpoint: str, model_name: str = "m", clock: Clock = time.monotonic, max_queued: int = MAX_QUEUED) -> BatchWriter:
    return BatchWriter("spans", SpanExporter(endpoint, Run.begin(model_name, clock)), max_queued)


def spans_of(collector: Collector, record: RequestRecord, number: int) -> dict[str, Span]:
    exporter = exporting(collector.endpoint, "a-model", lambda: 110.0)
    exporter.on_request(record)
    exporter.close()
    exporter.close()
    assert exporter.dropped.total == 0
    found = {span.name: span for span in collector.take(number)}
    assert len(found) == number
    assert collector.empty
    return found


def test_a_request_is_a_span_by_the_conventions_with_its_phases_below_it(collector: Collector) -> None:
    before = time.time()
    found = spans_of(collector, RECORD, 4)
    root = found.pop("chat a-model")
    assert attributes(root) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "inference_server",
        "gen_ai.request.model": "a-model",
        "gen_ai.response.model": "a-model",
        "gen_ai.response.id": "r1",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.conversation.id": "session",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 40,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "inference_server.preemptions": 1,
    }
    assert (root.kind, root.status.code) == (Span.SPAN_KIND_SERVER, 0)
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
    assert root.start_time_unix_nano / 1e9 == pytest.approx(before - 10, abs=5)
    times = {name: (span.start_time_unix_nano - root.start_time_unix_nano) / 1e9 for name, span in found.items()}
    lengths = {name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for name, span in found.items()}
    assert times == {"queue": 0.0, "prefill": 0.5, "decode": 2.0}
    assert lengths == {"queue": 0.5, "prefill": 1.5, "decode": 4.0}
    assert {(span.trace_id, span.parent_span_id) for span in found.values()} == {(root.trace_id, root.span_id)}
    assert [(event.name, attributes(event)) for event in root.events] == [("held", {"gate": "slots"}), ("prefill", {"tokens": 3})]
    (resource,) = collector.resources
    assert {"service.name": "inference-server", "service.version": __version__}.items() <= resource.items()
    assert collector.paths == ["/v1/traces"]


def test_a_refused_request_has_an_error_and_only_waited(collector: Collector) -> None:
    found = spans_of(collector, NEVER_RAN, 2)
    root = found["text_completion a-model"]
    assert (root.status.code, root.status.message, attributes(root)["error.type"]) == (2, "overloaded", "overloaded")
    assert root.parent_span_id == b""
    assert found["queue"].end_time_unix_nano == root.end_time_unix_nano


def test_a_client_that_does_not_sample_gets_no_spans(collector: Collector) -> None:
    exporter = exporting(collector.endpoint + "/v1/traces")
    exporter.on_request(replace(RECORD, origin=RequestOrigin(traceparent=f"00-{TRACE}-{PARENT}-00")))
    exporter.on_request(NEVER_RAN)
    exporter.close()
    assert {span.name for span in collector.take(2)} == {"text_completion m", "queue"}
    assert collector.empty


def test_a_dead_collector_costs_spans_and_nobody_s_time() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # but never listens
        exporter = exporting(f"http://127.0.0.1:{nobody.getsockname()[1]}", max_queued=50)
        started = time.monotonic()
        for _ in range(20_000):
            exporter.on_request(NEVER_RAN)
        assert time.monotonic() - started < 2, "the queue held the engine up"
        exporter.close()
        assert time.monotonic() - started < 8
        exporter._thread.join()  # before it ends, it logs what it has lost
    assert exporter.dropped.total >= 20_000 - 50


def test_a_collector_that_refuses_is_named_once_and_may_come_back(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    exporter = exporting(collector.endpoint)
    collector.status = 400
    for expected in (1, 2):
        exporter.on_request(NEVER_RAN)
        end = time.monotonic() + 5
        while exporter.dropped.total < expected:
            assert time.monotonic() < end
            time.sleep(0.01)
    assert caplog.text.count("OTLP_ENDPOINT") == caplog.text.count("code: 400") == 1, "that it fails and why, once"
    collector.status = 200
    exporter.on_request(NEVER_RAN)
    exporter.close()
    assert len(collector.take(2)) == 2
    assert exporter.dropped.total == 2
