"""`Timeline`: what the engine did, step by step, as JSON lines in files that rotate by size, the oldest of a run deleted.

A `BatchWriter` brings the records, so that no step waits for a disk; what it dropped is counted in a line of its own. Each file begins with
a line that says what run it is of and how to read it.
"""

import json
from io import FileIO
from pathlib import Path

from inference_server import __version__
from inference_server.core.records import RequestRecord, StepRecord
from inference_server.observability.batch_writer import Dropped
from inference_server.observability.run import Run
from inference_server.observability.timeline_events import SCHEMA_VERSION, TimelineEvents

MAX_FILE_BYTES = 64 * 2**20
MAX_FILES = 8


class Timeline:
    """A `RecordOutput`. Construction makes the folder and the first file; raises OSError."""

    takes_steps = True

    def __init__(self, folder: Path, run: Run, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        """A file ends with the first batch that takes it to `max_file_bytes`."""
        self._run = run
        self._events = TimelineEvents(run.epoch)
        self._max_file_bytes = max_file_bytes
        self._folder = folder
        self._num_files = self._num_reported = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._file = self._open_next()

    def write(self, records: list[StepRecord | RequestRecord], dropped: Dropped) -> None:
        lines: list[str] = []
        for record in records:
            if isinstance(record, StepRecord):
                lines.extend(self._events.of_step(record))
            else:
                lines.append(self._events.of_request(record))
        if dropped.total > self._num_reported:
            self._num_reported = dropped.total
            lines.append(json.dumps({"event": "drops", "ts": round(self._run.now() * 1e6), "total": self._num_reported}))
        if self._file.tell() >= self._max_file_bytes:
            full, self._file = self._file, self._open_next()
            full.close()
        data = "\n".join([*lines, ""]).encode()
        if self._file.write(data) != len(data):
            raise OSError("the disk is full")

    def close(self, dropped: Dropped, finished: bool) -> None:
        if finished:
            self._file.close()

    def _open_next(self) -> FileIO:
        """Unbuffered: a batch is one write, and one that failed is not tried again behind our back."""
        file = FileIO(self._path(self._num_files), "x")
        self._path(self._num_files - MAX_FILES).unlink(missing_ok=True)
        self._num_files += 1
        about = {"event": "run", "ts": round(self._run.started_at * 1e6), "schema": SCHEMA_VERSION, "version": __version__}
        about |= {"model": self._run.model_name, "file": self._num_files}
        file.write(f"{json.dumps(about)}\n".encode())
        return file

    def _path(self, index: int) -> Path:
        return self._folder / f"{self._run.file_stem}.{index:04d}.jsonl"
