"""`Sinks`: the readers of the engine's records that this process has, made together and closed together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from inference_server.core.clock import Clock
from inference_server.core.options import SinkOptions
from inference_server.core.records import RecordSink
from inference_server.observability.batch_writer import BatchWriter
from inference_server.observability.prometheus import PrometheusSink
from inference_server.observability.request_log import RequestLog
from inference_server.observability.run import Run
from inference_server.observability.telemetry import Telemetry
from inference_server.observability.timeline import Timeline
from inference_server.observability.tracker import MetricsTracker


class SinkError(Exception):
    """A sink that was asked for cannot be had. The message is one line that names the setting."""


@dataclass(frozen=True, slots=True)
class Sinks:
    """writing: by name, those of telemetry, timeline and spans that the options ask for."""

    tracker: MetricsTracker
    prometheus: PrometheusSink
    request_log: RequestLog
    writing: Mapping[str, BatchWriter]

    @classmethod
    def create(cls, model_name: str, options: SinkOptions, clock: Clock) -> Self:
        """Raises SinkError."""
        writing = _writing(Run.begin(model_name, clock), options)
        dropped = {name: lambda sink=sink: sink.dropped.total for name, sink in writing.items()}
        return cls(MetricsTracker(clock), PrometheusSink(model_name, dropped), RequestLog(), writing)

    def __iter__(self) -> Iterator[RecordSink]:
        yield from (self.tracker, self.prometheus, self.request_log)
        yield from self.writing.values()

    def close(self) -> None:
        """Write what has not been written. Returns in bounded time."""
        for sink in self.writing.values():
            sink.close()


def _writing(run: Run, options: SinkOptions) -> dict[str, BatchWriter]:
    sinks: dict[str, BatchWriter] = {}
    for name, folder, output in (("telemetry", options.telemetry_dir, Telemetry), ("timeline", options.timeline_dir, Timeline)):
        if folder is not None:
            try:
                sinks[name] = BatchWriter(name, output(folder.expanduser(), run))
            except OSError as error:
                raise SinkError(f"{name.upper()}_DIR: {error}") from error
    if options.otlp_endpoint is not None:
        try:
            from inference_server.observability.spans import MAX_QUEUED, SpanExporter
        except ImportError as error:
            raise SinkError("OTLP_ENDPOINT needs the extra `otel`: pip install '.[otel]' in a checkout") from error
        sinks["spans"] = BatchWriter("spans", SpanExporter(options.otlp_endpoint, run), MAX_QUEUED)
    return sinks
