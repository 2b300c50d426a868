"""`TokenStreamResponse`: server-sent events at the cost of one write each, with our own keep-alive comment.

The events arrive encoded. Whatever ends the response (its last event, the client, a shutdown), `on_close` runs once it has.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from inference_server.api.body_writer import BodyWriter
from inference_server.api.errors import ClientDisconnectedError
from inference_server.api.presence import while_connected

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class TokenStreamResponse(StreamingResponse):
    """content: whole events. writer: what writes the events that are not in it. A comment goes out after `ping_interval_s` of silence."""

    def __init__(
        self, content: AsyncIterator[bytes], on_close: Callable[[], Awaitable[None]], ping_interval_s: float, writer: BodyWriter | None
    ) -> None:
        super().__init__(content, media_type="text/event-stream", headers=HEADERS)
        self._on_close = on_close
        self._ping_interval_s = ping_interval_s
        self._writer = writer
        self._last_sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Starlette's own waits for client and content in a task group, which costs several times what two tasks do."""
        try:
            with suppress(ClientDisconnectedError):
                await while_connected(receive, self.stream_response(send))
        finally:
            await self._on_close()

    async def stream_response(self, send: Send) -> None:
        """Overrides Starlette's to send the pings from a second task: a timer around each event would cost more than the event."""
        clock = asyncio.get_running_loop().time
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._last_sent = clock()
        pings = asyncio.create_task(self._ping(send, clock))
        try:
            async for chunk in self.body_iterator:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                self._last_sent = clock()
        finally:
            pings.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ping(self, send: Send, clock: Callable[[], float]) -> None:
        while True:
            last_sent = self._last_sent if self._writer is None else max(self._last_sent, self._writer.last_write)
            idle_s = clock() - last_sent
            if idle_s >= self._ping_interval_s:
                await send({"type": "http.response.body", "body": PING, "more_body": True})
                self._last_sent = clock()
                idle_s = 0.0
            await asyncio.sleep(self._ping_interval_s - idle_s)
