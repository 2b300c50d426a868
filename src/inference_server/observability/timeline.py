"""`Timeline`: what the engine did, step by step, as JSON lines in files that rotate by size, the oldest of a run deleted.

A `BatchWriter` writes them, so that no step waits for a disk; what that dropped is counted in a line of its own. Each file begins with
a line that says what run it is of and how to read it.
"""

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

from inference_server import __version__
from inference_server.core.clock import Clock
from inference_server.core.records import RequestRecord, StepRecord
from inference_server.observability.batch_writer import MAX_QUEUED, BatchWriter
from inference_server.observability.timeline_events import SCHEMA_VERSION, TimelineEvents

MAX_FILE_BYTES = 64 * 2**20
MAX_FILES = 8


class Timeline:
    """A `RecordSink`. Construction makes the folder and the first file and starts the thread; raises OSError."""

    def __init__(
        self,
        folder: Path,
        model_name: str,
        clock: Clock,
        *,
        wall_clock: Callable[[], float] = time.time,
        max_file_bytes: int = MAX_FILE_BYTES,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        """clock: the engine's. A file ends with the first batch that takes it to `max_file_bytes`."""
        self._wall_clock = wall_clock
        started = wall_clock()
        self._events = TimelineEvents(started - clock())
        self._run = {"event": "run", "ts": round(started * 1e6), "schema": SCHEMA_VERSION, "version": __version__, "model": model_name}
        self._max_file_bytes = max_file_bytes
        self._stem = f"{datetime.fromtimestamp(started, UTC):%Y%m%dT%H%M%S%f}-{os.getpid()}"
        self._folder = folder
        self._num_files = self._num_reported = 0
        self._writer: BatchWriter[StepRecord | RequestRecord] = BatchWriter("timeline", self._write, max_queued)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = self._open_next()
        self._writer.start()

    def on_step(self, record: StepRecord) -> None:
        self._writer.put(record)

    def on_request(self, record: RequestRecord) -> None:
        self._writer.put(record)

    @property
    def num_dropped(self) -> int:
        """Records that are in no file."""
        return self._writer.num_dropped

    def close(self) -> None:
        """Write what is queued and close the file; returns in bounded time. Idempotent."""
        if self._writer.close():
            self._file.close()

    def _write(self, records: list[StepRecord | RequestRecord]) -> None:
        lines: list[str] = []
        for record in records:
            if isinstance(record, StepRecord):
                lines.extend(self._events.of_step(record))
            else:
                lines.append(self._events.of_request(record))
        if self.num_dropped > self._num_reported:
            self._num_reported = self.num_dropped
            lines.append(json.dumps({"event": "drops", "ts": round(self._wall_clock() * 1e6), "total": self._num_reported}))
        if self._file.tell() >= self._max_file_bytes:
            full, self._file = self._file, self._open_next()
            full.close()
        data = "\n".join([*lines, ""]).encode()
        if self._file.write(data) != len(data):
            raise OSError("the disk is full")

    def _open_next(self) -> FileIO:
        """Unbuffered: a batch is one write, and one that failed is not tried again behind our back."""
        file = FileIO(self._path(self._num_files), "x")
        self._path(self._num_files - MAX_FILES).unlink(missing_ok=True)
        self._num_files += 1
        file.write(f"{json.dumps(self._run | {'file': self._num_files})}\n".encode())
        return file

    def _path(self, index: int) -> Path:
        return self._folder / f"{self._stem}.{index:04d}.jsonl"
