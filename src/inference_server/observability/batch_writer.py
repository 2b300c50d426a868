"""`BatchWriter`: what the engine thread lets fall, written by another thread, a batch at a time.

To put something down is an append to a bounded queue, and never waits: what does not fit, or cannot be written, is counted and dropped.
The writing thread sleeps while there is nothing, and else looks twice a second, so that the engine need not wake it for every item.
"""

import logging
from collections import deque
from collections.abc import Callable
from threading import Event, Thread
from typing import Generic, TypeVar

INTERVAL_S = 0.5
MAX_QUEUED = 10_000
MAX_BATCH = 1000
CLOSE_S = 2.0

T = TypeVar("T")

logger = logging.getLogger(__name__)


class BatchWriter(Generic[T]):
    """`put` is for one thread. `write` runs on the writer's own and is never given nothing; what it raises costs the batch.

    num_refused, num_failed: items that did not fit, and that could not be written; each has one writer.
    """

    def __init__(self, name: str, write: Callable[[list[T]], None], max_queued: int = MAX_QUEUED) -> None:
        """name: of what is written, for the log."""
        self.num_refused = 0
        self.num_failed = 0
        self._name = name
        self._write = write
        self._max_queued = max_queued
        self._queue: deque[T] = deque()
        self._filled = Event()
        self._closing = Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    @property
    def num_dropped(self) -> int:
        return self.num_refused + self.num_failed

    def start(self) -> None:
        self._thread.start()

    def put(self, item: T) -> None:
        if len(self._queue) >= self._max_queued:
            self.num_refused += 1
            return
        self._queue.append(item)
        if not self._filled.is_set():
            self._filled.set()

    def close(self) -> bool:
        """Write what is queued and end the thread. False: it was left behind after `CLOSE_S`. Idempotent."""
        self._closing.set()
        self._filled.set()
        self._thread.join(CLOSE_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._filled.wait()
            self._closing.wait(INTERVAL_S)  # for more to come
            self._filled.clear()
            self._drain()
        self._drain()

    def _drain(self) -> None:
        while batch := [self._queue.popleft() for _ in range(min(len(self._queue), MAX_BATCH))]:
            try:
                self._write(batch)
            except Exception as error:
                if not self.num_failed:
                    logger.error("%s cannot be written: %s; further failures are counted and not logged", self._name, error)
                self.num_failed += len(batch)
