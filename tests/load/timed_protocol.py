"""How long a server takes over its refusals, from the reading of a request's last bytes to the writing of the answer."""

import time
from asyncio import Transport
from typing import Any

from inference_server.api.http_protocol import HttpProtocol


class Watched:
    """A transport that says when an answer goes out."""

    def __init__(self, transport: Transport, protocol: Any) -> None:
        self._transport = transport
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._transport.write(data)
        self._protocol.written(data)


def refusal_times() -> tuple[type[HttpProtocol], list[float]]:
    """A protocol, and the seconds of each 429 that its connections have written."""
    times: list[float] = []

    class TimedProtocol(HttpProtocol):
        def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.transport = Watched(transport, self)  # type: ignore[assignment]

        def data_received(self, data: bytes) -> None:
            self.read = time.perf_counter()
            super().data_received(data)

        def written(self, data: bytes) -> None:
            if data.startswith(b"HTTP/1.1 429 "):
                times.append(time.perf_counter() - self.read)

    return TimedProtocol, times
