"""`BatchWriter`: writes the engine's records on a thread of its own, a batch at a time.

For the engine thread a record is an append to a bounded queue and never waits; what does not fit, or cannot be written, is counted and
dropped. The writing thread sleeps while the queue is empty and otherwise looks twice a second, so the engine need not wake it for each one.
"""

import logging
from collections import deque
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any, Protocol

from inference_server.core.records import RequestRecord, StepRecord

INTERVAL_S = 0.5
MAX_QUEUED = 10_000
MAX_BATCH = 1000
CLOSE_S = 2.0

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Dropped:
    """How many records did not fit into the queue, and how many could not be written; each number is changed by one thread only."""

    queue_full: int = 0
    write_failed: int = 0

    @property
    def total(self) -> int:
        return self.queue_full + self.write_failed


class RecordOutput(Protocol):
    """Where a `BatchWriter` writes. takes_steps: whether `StepRecord`s are wanted beside `RequestRecord`s."""

    takes_steps: bool

    def write(self, records: list[Any], dropped: Dropped) -> None:
        """Called by the writing thread. records: at least one, in the order in which they were made. If it raises, they are lost."""
        ...

    def close(self, dropped: Dropped, finished: bool) -> None:
        """Called once, by the thread that closes. finished: False if the writing thread is still in `write`, where it is left behind."""
        ...


class BatchWriter:
    """A `RecordSink`. Construction starts the thread."""

    def __init__(self, name: str, output: RecordOutput, max_queued: int = MAX_QUEUED) -> None:
        """name: what is written, for the log."""
        self.dropped = Dropped()
        self._name = name
        self._output = output
        self._max_queued = max_queued
        self._queue: deque[StepRecord | RequestRecord] = deque()
        self._filled = Event()
        self._closing = Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def on_step(self, record: StepRecord) -> None:
        if self._output.takes_steps:
            self._put(record)

    def on_request(self, record: RequestRecord) -> None:
        self._put(record)

    def close(self) -> None:
        """Write what is queued and close the output; returns in bounded time. Idempotent."""
        if not self._closing.is_set():
            self._closing.set()
            self._filled.set()
            self._thread.join(CLOSE_S)
            self._output.close(self.dropped, finished=not self._thread.is_alive())

    def _put(self, record: StepRecord | RequestRecord) -> None:
        if len(self._queue) >= self._max_queued:
            self.dropped.queue_full += 1
            return
        self._queue.append(record)
        if not self._filled.is_set():
            self._filled.set()

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
                self._output.write(batch, self.dropped)
            except Exception as error:
                if not self.dropped.write_failed:
                    logger.error("%s cannot be written: %s; further failures are counted and not logged", self._name, error)
                self.dropped.write_failed += len(batch)
