"""How long a server takes to refuse: from reading the last bytes of a request to writing the first of the answer."""

import time
from asyncio import Transport
from typing import Any

from inference_server.api.http_protocol import HttpProtocol


class WatchedTransport:
    """Tells its protocol what is written."""

    def __init__(self, transport: Transport, protocol: Any) -> None:
        self._transport = transport
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._transport.write(data)
        self._protocol.written(data)


def timing() -> tuple[type[HttpProtocol], list[float]]:
    """A protocol class, and a list to which it adds the seconds of each 429 on its connections."""
    refusals: list[float] = []

    class TimedProtocol(HttpProtocol):
        def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.transport = WatchedTransport(transport, self)  # type: ignore[assignment]

        def data_received(self, data: bytes) -> None:
            self.read_at = time.perf_counter()
            super().data_received(data)

        def written(self, data: bytes) -> None:
            if data.startswith(b"HTTP/1.1 429 "):
                refusals.append(time.perf_counter() - self.read_at)

    return TimedProtocol, refusals
