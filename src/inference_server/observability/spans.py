"""`SpanExporter`: each request that ended as spans for an OpenTelemetry collector, by OTLP over HTTP.

One span covers the request from its arrival, with the attributes of the GenAI semantic conventions; its children are the times in
the queue, in prefill and in decode. Their parent is the `traceparent` that the client sent; if it says not to sample, there are none. A
`BatchWriter` has them made and sent, so a collector that is slow or gone costs spans and nothing else. This module needs the extra `otel`.
"""

import logging
from collections.abc import Iterator, Mapping

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from inference_server import __version__
from inference_server.core.records import RequestRecord
from inference_server.observability.batch_writer import Dropped
from inference_server.observability.run import Run

TRACES_PATH = "/v1/traces"
PROVIDER = "inference_server"
MAX_QUEUED = 2048  # requests
TIMEOUT_S = 5.0

Attributes = Mapping[str, str | int | float | tuple[str, ...]]


class SpanExporter:
    """A `RecordOutput`. endpoint: of the collector, as `http://host:4318`; `/v1/traces` is added where it is missing."""

    takes_steps = False

    def __init__(self, endpoint: str, run: Run) -> None:
        self._run = run
        url = endpoint.rstrip("/")
        self._exporter = OTLPSpanExporter(url if url.endswith(TRACES_PATH) else url + TRACES_PATH, timeout=TIMEOUT_S)
        resource = Resource.create({SERVICE_NAME: "inference-server", SERVICE_VERSION: __version__})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._ended = _EndedSpans()
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("inference_server", __version__)

    def write(self, records: list[RequestRecord], dropped: Dropped) -> None:
        for record in records:
            self._trace(record)
        if (spans := self._ended.take()) and self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            logging.getLogger(OTLPSpanExporter.__module__).disabled = True  # it has said why, and would for every batch
            raise OSError("the collector at OTLP_ENDPOINT did not take them")

    def close(self, dropped: Dropped, finished: bool) -> None:
        """A `write` that still waits for a collector that does not answer then stops waiting."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _trace(self, record: RequestRecord) -> None:
        parent = TraceContextTextMapPropagator().extract({"traceparent": record.origin.traceparent}, Context())
        attributes = {name: value for name, value in self._attributes(record) if value != ""}
        name = f"{attributes['gen_ai.operation.name']} {self._run.model_name}"
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, attributes, start_time=self._ns(record.arrival_time))
        inside = set_span_in_context(span, parent)
        for phase, start, end in _phases(record):
            self._tracer.start_span(phase, inside, start_time=self._ns(start)).end(self._ns(end))
        for event in record.events:
            about: Attributes = {"gate": event.gate} if event.gate else {"tokens": event.num_tokens} if event.num_tokens else {}
            span.add_event(event.kind, about, self._ns(event.start_time))
        if record.error_code is not None:
            span.set_status(Status(StatusCode.ERROR, record.error_code))
        span.end(self._ns(record.end_time))

    def _attributes(self, record: RequestRecord) -> Iterator[tuple[str, str | int | float | tuple[str, ...]]]:
        """An empty string stands for a value that does not exist."""
        sampling = record.sampling
        yield "gen_ai.operation.name", "chat" if record.is_chat else "text_completion"
        yield "gen_ai.provider.name", PROVIDER
        yield "gen_ai.request.model", self._run.model_name
        yield "gen_ai.response.model", self._run.model_name
        yield "gen_ai.response.id", record.request_id
        yield "gen_ai.response.finish_reasons", (str(record.finish_reason),)
        yield "gen_ai.conversation.id", record.origin.session_id
        yield "gen_ai.request.max_tokens", sampling.max_tokens
        yield "gen_ai.request.temperature", sampling.temperature
        yield "gen_ai.request.top_p", sampling.top_p
        yield "gen_ai.request.top_k", sampling.top_k or ""
        yield "gen_ai.request.frequency_penalty", sampling.frequency_penalty
        yield "gen_ai.request.presence_penalty", sampling.presence_penalty
        yield "gen_ai.usage.input_tokens", record.prompt_tokens
        yield "gen_ai.usage.cache_read.input_tokens", record.cached_tokens
        yield "gen_ai.usage.output_tokens", record.output_tokens
        yield "gen_ai.usage.reasoning.output_tokens", record.reasoning_tokens or ""
        yield "error.type", record.error_code or ""
        yield "inference_server.preemptions", record.num_preemptions or ""

    def _ns(self, seconds: float) -> int:
        return round((self._run.epoch + seconds) * 1e6) * 1000


def _phases(record: RequestRecord) -> Iterator[tuple[str, float, float]]:
    """The phases that the request reached, each with its start and end, without gaps between them."""
    starts = (("queue", record.arrival_time), ("prefill", record.admitted_time), ("decode", record.first_token_time))
    reached = [(name, start) for name, start in starts if start is not None]
    ends = [*(start for _, start in reached[1:]), record.end_time]
    for (name, start), end in zip(reached, ends, strict=True):
        yield name, start, end


class _EndedSpans(SpanProcessor):
    """Gathers the spans of a batch. The SDK's own processor has a thread and a queue of its own, and does not say what it dropped."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        spans, self._spans = self._spans, []
        return spans
