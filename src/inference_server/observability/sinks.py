"""`Sinks`: the readers of the engine's records that this process has, made together and closed together."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from inference_server.core.clock import Clock
from inference_server.core.records import RecordSink
from inference_server.observability.prometheus import PrometheusSink
from inference_server.observability.request_log import RequestLog
from inference_server.observability.telemetry import Telemetry
from inference_server.observability.tracker import MetricsTracker


@dataclass(frozen=True, slots=True)
class Sinks:
    """telemetry: None without a folder for it."""

    tracker: MetricsTracker
    prometheus: PrometheusSink
    request_log: RequestLog
    telemetry: Telemetry | None

    @classmethod
    def create(cls, model_name: str, telemetry_dir: Path | None, clock: Clock) -> Self:
        """Raises OSError when the folder cannot be written to."""
        telemetry = None if telemetry_dir is None else Telemetry(telemetry_dir.expanduser(), model_name, clock)
        return cls(MetricsTracker(clock), PrometheusSink(model_name), RequestLog(), telemetry)

    def __iter__(self) -> Iterator[RecordSink]:
        yield from (self.tracker, self.prometheus, self.request_log)
        if self.telemetry is not None:
            yield self.telemetry

    def close(self) -> None:
        """Write what has not been written. Returns in bounded time."""
        if self.telemetry is not None:
            self.telemetry.close()
