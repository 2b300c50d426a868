"""How long a server takes over its refusals, from the reading of a request's last bytes to the writing of the answer's first."""

import time
from asyncio import Transport
from dataclasses import dataclass
from typing import Any

from inference_server.api.http_protocol import HttpProtocol


@dataclass(frozen=True, slots=True)
class Refusal:
    """A 429. seconds: by the clock. processor_s: of all threads of the process meanwhile, which a busy machine adds nothing to."""

    seconds: float
    processor_s: float


class WatchedTransport:
    """Tells its protocol what goes out."""

    def __init__(self, transport: Transport, protocol: Any) -> None:
        self._transport = transport
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._transport.write(data)
        self._protocol.written(data)


def timing() -> tuple[type[HttpProtocol], list[Refusal]]:
    """A protocol, and what its connections refuse."""
    refusals: list[Refusal] = []

    class TimedProtocol(HttpProtocol):
        def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.transport = WatchedTransport(transport, self)  # type: ignore[assignment]

        def data_received(self, data: bytes) -> None:
            self.read_at = time.perf_counter(), time.process_time()
            super().data_received(data)

        def written(self, data: bytes) -> None:
            if data.startswith(b"HTTP/1.1 429 "):
                clock, processor = self.read_at
                refusals.append(Refusal(time.perf_counter() - clock, time.process_time() - processor))

    return TimedProtocol, refusals
