"""Hop 7 and the count of open places: the event loop's side of what the engine thread hands over.

A place is taken before a request costs anything and given back with its terminal delta, so the number of places is the number
of requests that wait or run. Everything but `hand_over` runs on the loop, which is why there are no locks.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from inference_server.core.errors import InferenceServerError
from inference_server.core.outputs import OutputDelta
from inference_server.engine.request_stream import RequestStream

_RECENT_ENDS = 32


class StreamRegistry:
    """The streams of the requests whose terminal delta has not come yet, and the places of those still on their way to one."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._streams: dict[str, RequestStream] = {}
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._num_places = 0
        self._end_times: deque[float] = deque(maxlen=_RECENT_ENDS)

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Before anything else."""
        self._loop = loop

    @property
    def num_places(self) -> int:
        return self._num_places

    @property
    def num_streams(self) -> int:
        """A stream with several choices counts once for each that has not ended."""
        return len(self._streams)

    def take_places(self, number: int = 1) -> None:
        self._num_places += number
        self._quiet.clear()

    def give_places_back(self, number: int = 1) -> None:
        self._num_places -= number
        if not self._num_places:
            self._quiet.set()

    async def wait_quiet(self) -> None:
        """Until there are no places."""
        await self._quiet.wait()

    def seconds_per_end(self) -> float:
        """Mean time between the latest ends of requests; 0 before there are any."""
        return (self._loop.time() - self._end_times[0]) / len(self._end_times) if self._end_times else 0.0

    def open(self, stream: RequestStream) -> None:
        """Turn places that were taken, one a choice, into a stream; a choice that ends gives its place back."""
        for request_id in stream.request_ids:
            self._streams[request_id] = stream

    def hand_over(self, deltas: Mapping[str, OutputDelta]) -> None:
        """Crossing 2, from the engine thread: one callback a step, whatever the number of streams."""
        if deltas:
            self.call(lambda: self._deliver(deltas))

    def call(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the loop, from any thread. A loop that has closed has no readers left to tell."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def close_all(self, error: Callable[[], InferenceServerError]) -> None:
        """End every stream that the engine will not end any more."""
        self._deliver({request_id: OutputDelta(error=error()) for request_id in self._streams})

    def _deliver(self, deltas: Mapping[str, OutputDelta]) -> None:
        for request_id, delta in deltas.items():
            stream = self._streams.get(request_id)
            if stream is None:
                continue
            stream.push(request_id, delta)
            if delta.terminal:
                del self._streams[request_id]
                self._end_times.append(self._loop.time())
                self.give_places_back()
