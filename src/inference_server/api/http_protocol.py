"""`HttpProtocol`: uvicorn's HTTP/1.1 connection, held to limits where there is no request yet that middleware could refuse.

The head of a request must be whole within `head_timeout_s` and a size; a connection on which no request is under way always has a timer.
What is no HTTP is refused in the error shape. Every request on a connection learns that its client has left, not only the last one. Each
request comes with a `BodyWriter`. For plain uvicorn: `--http inference_server.api.http_protocol:HttpProtocol`.
"""

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from inference_server.api.body_writer import EXTENSION, BodyWriter
from inference_server.api.errors import error_body

MAX_HEAD_BYTES = 256 * 1024  # `HeaderLimit` refuses far less, with better words; this is what one connection may keep in memory
MAX_PIPELINED = 16


class HttpProtocol(HttpToolsProtocol):
    """head_timeout_s: from a request's first byte to the end of its headers, and from the opening of a connection to its first byte."""

    head_timeout_s = 10.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_open = False
        self._num_heads = 0
        self._head_bytes = 0
        self._earlier: list[RequestResponseCycle] = []  # requests before the latest one, as long as they are not answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watch()
        for cycle in self._earlier:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        head = self._num_heads
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._head_open and self._num_heads == head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                return self._refuse(431, f"the headers are larger than {MAX_HEAD_BYTES} bytes")
        self._watch_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_open, self._head_bytes = True, 0
        self._num_heads += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers come here too, and are dropped: they would join the headers of a request that has been let in."""
        if self._head_open:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_open = False
        self._stop_watch()
        if len(self.pipeline) == MAX_PIPELINED:
            raise ValueError("too many requests wait for the answer to the one before")
        if self.cycle is not None and not self.cycle.response_complete:
            self._earlier = [cycle for cycle in self._earlier if not cycle.response_complete] + [self.cycle]
        super().on_headers_complete()
        if self.cycle is not None:
            self.cycle.scope["extensions"] = {EXTENSION: {"writer": BodyWriter(self.cycle, self.loop.time)}}

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is not a valid HTTP/1.1 request, or one of too many that wait")

    def _watch_head(self) -> None:
        """After a response uvicorn has its own timer, until the next byte comes."""
        answered = self.cycle is None or self.cycle.response_complete
        if answered and self._head_timer is None and self.timeout_keep_alive_task is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._too_late)

    def _stop_watch(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_late(self) -> None:
        if self._head_open:
            self._refuse(408, f"the headers did not arrive within {self.head_timeout_s:g} s")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        """Answer, unless another answer is under way, and end the connection."""
        if self.transport.is_closing():
            return
        if not any(cycle.response_started and not cycle.response_complete for cycle in (*self._earlier, self.cycle) if cycle is not None):
            body = error_body(status, message)
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()
