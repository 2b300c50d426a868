"""A collector of OpenTelemetry spans for tests: OTLP over HTTP on a loopback port, protobuf decoded."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Keeps what arrives, in order. status: the HTTP status of every answer."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.status = 200
        self.paths: list[str] = []
        self.resources: list[dict[str, Any]] = []
        self._spans: Queue[Span] = Queue()

    def take(self, number: int) -> list[Span]:
        """The next `number` spans. Raises `queue.Empty` if they do not come."""
        return [self._spans.get(timeout=10) for _ in range(number)]

    @property
    def empty(self) -> bool:
        return self._spans.empty()

    def receive(self, path: str, body: bytes) -> None:
        self.paths.append(path)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(attributes(resource.resource))
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self._spans.put(span)


def attributes(holder: Any) -> dict[str, Any]:
    """The attributes of a span, an event or a resource, as Python values."""

    def value(any_value: Any) -> Any:
        kind = any_value.WhichOneof("value")
        found = getattr(any_value, kind)
        return [value(each) for each in found.values] if kind == "array_value" else found

    return {attribute.key: value(attribute.value) for attribute in holder.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if collector.status == 200:
                collector.receive(self.path, body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(collector.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
