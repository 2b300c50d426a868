"""One HTTP request put to an ASGI application in this process: the bytes of its answer as they come, and a disconnect when nobody reads on.

This is a replica's half of a request's way. What travels between the processes are plain values that can be pickled.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Scope

from control_plane.routing_key import RoutingKey

Headers = tuple[tuple[bytes, bytes], ...]
LEAVE_S = 5.0  # how long an application may take to notice that its client has left


@dataclass(slots=True, eq=False)
class Progress:
    """Lets the router of this process know how far a request has come. It means nothing in another process, and arrives there empty."""

    on_answer: Callable[[], object] | None = None

    def answered(self) -> None:
        if self.on_answer is not None:
            self.on_answer()

    def __reduce__(self) -> tuple[type["Progress"], tuple[()]]:
        return Progress, ()


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """A request with its whole body. key, progress: the router's; applications do not see them."""

    method: str
    path: str
    query_string: bytes = b""
    headers: Headers = ()
    body: bytes = b""
    client: tuple[str, int] | None = None
    key: RoutingKey = field(default_factory=RoutingKey)
    progress: Progress = field(default_factory=Progress, compare=False)

    def scope(self) -> Scope:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": self.query_string,
            "root_path": "",
            "headers": list(self.headers),
            "client": self.client,
            "server": None,
            "state": {},
        }


@dataclass(frozen=True, slots=True)
class ResponseHead:
    status: int
    headers: Headers

    @property
    def is_stream(self) -> bool:
        return any(name.lower() == b"content-type" and value.startswith(b"text/event-stream") for name, value in self.headers)


async def call_app(app: ASGIApp, request: ForwardedRequest) -> AsyncGenerator[ResponseHead | bytes, None]:
    """The head of the answer, then its body in pieces; pieces that wait for the reader are joined. Raises what the application raises.

    Closing the generator, or cancelling the task that waits for it, is a disconnect to the application.
    """
    messages: asyncio.Queue[Message | None] = asyncio.Queue()
    gone = asyncio.Event()
    bodies = [request.body]

    async def receive() -> Message:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def run() -> None:
        try:
            await app(request.scope(), receive, messages.put)
        finally:
            messages.put_nowait(None)

    task = asyncio.create_task(run())
    try:
        while (message := await messages.get()) is not None:
            if message["type"] == "http.response.start":
                yield ResponseHead(message["status"], tuple((bytes(name), bytes(value)) for name, value in message["headers"]))
            elif body := message.get("body", b"") + _waiting(messages):
                yield body
        await task
    finally:
        gone.set()
        await _leave(task)


def _waiting(messages: asyncio.Queue[Message | None]) -> bytes:
    """The bodies that are there already; the end stays in the queue."""
    parts = []
    with suppress(asyncio.QueueEmpty):
        while (message := messages.get_nowait()) is not None:
            parts.append(message.get("body", b""))
        messages.put_nowait(None)
    return b"".join(parts)


async def _leave(task: asyncio.Task[None]) -> None:
    await asyncio.wait((task,), timeout=LEAVE_S)
    if not task.done():
        task.cancel()
    elif not task.cancelled():
        task.exception()  # read, so that asyncio does not log it: a reader who was still there has had it raised
