"""`BodyWriter`: an ASGI extension that writes a stream's event where it arrives, without waking a task that awaits `send`.

`HttpProtocol` puts one into the scope of every request; under another server there is none, and all goes through `send`. Middleware that
changes bodies on their way through `send` has to take the extension out of the scope.
"""

from collections.abc import Callable
from math import inf

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

EXTENSION = "inference_server.body_writer"


class BodyWriter:
    """Writes chunks of a body whose head, and whatever came before them, has gone through `send`, and which `send` will end.

    last_write: when, by `clock`; minus infinity before the first.
    """

    def __init__(self, cycle: RequestResponseCycle, clock: Callable[[], float]) -> None:
        self.last_write = -inf
        self._cycle = cycle
        self._clock = clock

    @classmethod
    def of(cls, scope: Scope) -> "BodyWriter | None":
        """That of a request, if its server offers one."""
        writer: BodyWriter | None = (scope.get("extensions") or {}).get(EXTENSION, {}).get("writer")
        return writer

    @property
    def ready(self) -> bool:
        """Whether the response is open and its client keeps up. Where it is not, `send` waits for the client, or gives up."""
        cycle = self._cycle
        return bool(cycle.chunked_encoding) and not (cycle.flow.write_paused or cycle.disconnected or cycle.response_complete)

    def write(self, chunk: bytes) -> None:
        """chunk: not empty. Only while `ready`."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        self.last_write = self._clock()
