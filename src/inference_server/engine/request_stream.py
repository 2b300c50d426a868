"""`RequestStream`: one client's end of its generations, on the event loop. Nothing here ever waits for a reader.

Deltas that arrive before the reader comes for them are merged by choice, so a slow reader costs one delta of memory a choice and
misses nothing.
"""

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from inference_server.core.errors import RequestAbortedError
from inference_server.core.outputs import OutputDelta


class RequestStream:
    """An async iterator of the deltas of all choices, told apart by their index.

    Each choice has exactly one terminal delta, its last; iteration ends after all of these. Errors are deltas too, and never
    raised by iteration. Leave early through `aclose`, or by leaving an `async with` block: that aborts what has not ended. All
    methods run on the loop.
    """

    def __init__(self, request_ids: Sequence[str], abort: Callable[[str], None]) -> None:
        """request_ids: one a choice, in their order."""
        self.request_ids = request_ids
        self._abort = abort
        self._indices = {request_id: index for index, request_id in enumerate(request_ids)}
        self._pending: dict[int, OutputDelta] = {}  # by choice, those that came first in front
        self._waiter: asyncio.Future[None] | None = None  # of the one reader, while it waits
        self._take: Callable[[OutputDelta], bool] | None = None
        self._unfinished = dict.fromkeys(request_ids)
        self._num_unread = len(request_ids)  # terminal deltas

    @property
    def exhausted(self) -> bool:
        """Whether the reader has had all there will be."""
        return not self._num_unread

    def divert(self, take: Callable[[OutputDelta], bool]) -> None:
        """From now on call `take` with each delta that comes while the reader waits, instead of waking it; terminal deltas excepted.

        Order is kept: a reader that waits is done with all that came before. `take` returns False, and does nothing, to leave a delta
        to the reader after all. What it raises, iteration raises.
        """
        self._take = take

    def push(self, request_id: str, delta: OutputDelta) -> None:
        """The next delta of a choice, for the reader who waits, or for the next read."""
        if self.exhausted:
            return
        delta.index = index = self._indices[request_id]
        if delta.terminal:
            del self._unfinished[request_id]
        elif self._diverted(delta):
            return
        pending = self._pending.setdefault(index, delta)
        if pending is not delta:
            pending.merge(delta)
        self._wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OutputDelta:
        while not self._pending:
            if self.exhausted:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        delta = self._pending.pop(next(iter(self._pending)))
        self._num_unread -= delta.terminal
        return delta

    async def collect(self) -> OutputDelta:
        """The first choice as one delta, as `collect_choices`."""
        return (await self.collect_choices())[0]

    async def collect_choices(self) -> list[OutputDelta]:
        """Each choice as one delta. Raises the first error that ended one; aborts what has not ended then, or when cancelled."""
        choices = [OutputDelta(index=index) for index in range(len(self.request_ids))]
        async with self:
            async for delta in self:
                choices[delta.index].merge(delta)
                if delta.error is not None:
                    raise delta.error
        if not all(choice.terminal for choice in choices):
            raise RequestAbortedError("the request was cancelled")
        return choices

    async def aclose(self) -> None:
        """Abort the choices whose terminal delta has not arrived; iteration ends. Idempotent."""
        if self.exhausted:
            return
        self._num_unread = 0
        self._pending.clear()
        self._wake()
        for request_id in self._unfinished:
            self._abort(request_id)

    def _diverted(self, delta: OutputDelta) -> bool:
        if self._take is None or (waiter := self._waiting()) is None:
            return False
        try:
            return self._take(delta)
        except Exception as error:  # the reader's alone: whoever pushes has deltas for others too
            waiter.set_exception(error)
            return True

    def _wake(self) -> None:
        if (waiter := self._waiting()) is not None:
            waiter.set_result(None)

    def _waiting(self) -> asyncio.Future[None] | None:
        """The future that the reader waits on; None while it does not wait."""
        return None if self._waiter is None or self._waiter.done() else self._waiter

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()
