"""`Forwarder`: gets a request answered by the fleet although replicas die.

A request whose replica dies before the client has seen a token runs elsewhere, once, and the client sees nothing of it; after a token, or
when the second replica dies too, the client gets one error. What the replicas themselves answer, refusals too, passes as it is.
"""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from control_plane.asgi_call import ForwardedRequest, ResponseHead

Call = Callable[[ForwardedRequest], AsyncGenerator[ResponseHead | bytes, None]]
Answer = tuple[ResponseHead, AsyncGenerator[bytes, None]]

LOST = "the replica that ran this request was lost"


class ReplicaLostError(Exception):
    """The replica that a request ran on is gone."""


class FleetBusyError(Exception):
    """As many requests wait for a replica as are allowed to."""


class Forwarder:
    """call: sends a request to the replica that the router chooses; it raises ReplicaLostError or FleetBusyError."""

    def __init__(self, call: Call) -> None:
        self.retries_total = 0
        self.broken_total = 0
        self.refused_total = 0
        self._call = call

    async def answer(self, request: ForwardedRequest, may_retry: bool = True) -> Answer:
        """The head and the pieces of the body. An answer that is no stream of events is complete before this returns."""
        while True:
            try:
                head, pieces = await self._begin(request)
                return head, self._stream(request, pieces, may_retry) if head.is_stream else pieces
            except FleetBusyError:
                self.refused_total += 1
                return _refusal(429, "rate_limit_error", "overloaded", "every replica is busy and the queue of the fleet is full")
            except ReplicaLostError:
                if not may_retry:
                    self.broken_total += 1
                    return _refusal(503, "service_unavailable_error", "replica_lost", LOST)
                may_retry = False
                self.retries_total += 1

    async def _begin(self, request: ForwardedRequest) -> Answer:
        items = self._call(request)
        try:
            head = await anext(items)
            assert isinstance(head, ResponseHead), "an answer begins with its head"
            request.progress.answered()
            pieces = _bodies(items)
            return head, pieces if head.is_stream else _once(b"".join([piece async for piece in pieces]))
        except BaseException:
            await items.aclose()
            raise

    async def _stream(self, request: ForwardedRequest, pieces: AsyncGenerator[bytes, None], may_retry: bool) -> AsyncGenerator[bytes, None]:
        """The events of a stream, which may go on from another replica as long as only comments have come."""
        said = False
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    said = said or any(line and not line.startswith(b":") for line in piece.splitlines())  # a piece may be several, joined
                    yield piece
            return
        except ReplicaLostError:
            if said or not may_retry:
                self.broken_total += 1
                yield _last_event(request, _error("service_unavailable_error", "replica_lost", LOST))
                return
        self.retries_total += 1
        head, pieces = await self.answer(request, may_retry=False)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece if head.is_stream else _last_event(request, piece)


async def _bodies(items: AsyncGenerator[ResponseHead | bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(items):
        async for item in items:
            assert isinstance(item, bytes), "an answer has one head"
            yield item


async def _once(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


def _refusal(status: int, kind: str, code: str, message: str) -> Answer:
    headers = ((b"content-type", b"application/json"), (b"retry-after", b"1"))
    return ResponseHead(status, headers), _once(_error(kind, code, message))


def _error(kind: str, code: str, message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()


def _last_event(request: ForwardedRequest, error: bytes) -> bytes:
    """The last event of a stream that ends in an error. error: its JSON, in the shape of every route but `/responses`."""
    if not request.path.endswith("/responses"):
        return b"data: " + error + b"\n\ndata: [DONE]\n\n"
    event = {"type": "error", "code": "server_error", "message": json.loads(error)["error"]["message"], "param": None}
    return b"event: error\ndata: " + json.dumps(event).encode() + b"\n\n"
