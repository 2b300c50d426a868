"""`RequestStream`: one client's end of a generation, on the event loop. Nothing here ever waits for a reader.

Deltas that arrive before the reader comes for them are merged, so a slow reader costs one delta of memory and misses nothing.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from inference_server.core.errors import RequestAbortedError
from inference_server.core.outputs import OutputDelta


class RequestStream:
    """An async iterator of deltas; the last is terminal, and there is exactly one. Errors are deltas too, and never raised by iteration.

    Leave early through `aclose`, or by leaving an `async with` block: that aborts the generation. All methods run on the loop.
    """

    def __init__(self, request_id: str, abort: Callable[[str], None]) -> None:
        self.request_id = request_id
        self._abort = abort
        self._pending: OutputDelta | None = None
        self._wakeup = asyncio.Event()
        self._complete = False
        self._exhausted = False
        self._started = False

    @property
    def started(self) -> bool:
        """Whether the reader has had its first delta."""
        return self._started

    def push(self, delta: OutputDelta) -> None:
        """Take the next delta, for the next read; a reader who waits already sleeps on until `wake`."""
        if self._exhausted:
            return
        self._complete = delta.terminal
        if self._pending is None:
            self._pending = delta
        else:
            self._pending.merge(delta)

    def wake(self) -> None:
        self._wakeup.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OutputDelta:
        while self._pending is None:
            if self._exhausted:
                raise StopAsyncIteration
            self._wakeup.clear()
            await self._wakeup.wait()
        delta, self._pending = self._pending, None
        self._started = True
        self._exhausted = delta.terminal
        return delta

    async def collect(self) -> OutputDelta:
        """The whole generation as one delta. Raises the error that ended it, if one did; aborts it when cancelled."""
        whole = OutputDelta()
        async with self:
            async for delta in self:
                whole.merge(delta)
        if not whole.terminal:
            raise RequestAbortedError("the request was cancelled")
        if whole.error is not None:
            raise whole.error
        return whole

    async def aclose(self) -> None:
        """Abort the generation unless its terminal delta has arrived; iteration ends. Idempotent."""
        if self._exhausted:
            return
        self._exhausted, self._pending = True, None
        self.wake()
        if not self._complete:
            self._abort(self.request_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()
