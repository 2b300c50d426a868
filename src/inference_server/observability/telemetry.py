"""`Telemetry`: every request that ended as a row of SQLite, one file a run, for questions that percentiles do not answer.

A `BatchWriter` commits twice a second in WAL mode, so a process that is killed loses no more than that, and the file can be read
while it grows. What did not fit into its queue, or could not be written, is counted and dropped. Neither prompts nor answers are in it.
"""

import os
import sqlite3
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from inference_server import __version__
from inference_server.core.clock import Clock
from inference_server.core.records import RequestRecord, StepRecord
from inference_server.observability.batch_writer import MAX_QUEUED, BatchWriter

SCHEMA_VERSION = 1
# Times are seconds since the epoch; NULL where a request did not come so far.
SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE requests (
    request_id TEXT PRIMARY KEY,
    trace_id TEXT NOT NULL,
    client_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    fairness_key TEXT NOT NULL,
    finish_reason TEXT NOT NULL,
    error_code TEXT,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    preemptions INTEGER NOT NULL,
    arrival_time REAL NOT NULL,
    admitted_time REAL,
    first_token_time REAL,
    end_time REAL NOT NULL,
    queue_s REAL AS (coalesce(admitted_time, end_time) - arrival_time),
    prefill_s REAL AS (coalesce(first_token_time, end_time) - admitted_time),
    decode_s REAL AS (end_time - first_token_time),
    ttft_s REAL AS (first_token_time - arrival_time),
    total_s REAL AS (end_time - arrival_time)
) WITHOUT ROWID;
CREATE INDEX requests_by_trace ON requests (trace_id);
CREATE INDEX requests_by_end ON requests (end_time);
"""
INSERT = f"INSERT INTO requests VALUES ({', '.join('?' * 15)})"


class Telemetry:
    """A `RecordSink`. Construction makes the folder and the file and starts the thread; raises OSError."""

    def __init__(self, folder: Path, model_name: str, clock: Clock, max_queued: int = MAX_QUEUED) -> None:
        """clock: the engine's."""
        started = time.time()
        self._epoch = started - clock()  # what turns the engine's seconds into those since the epoch
        self._writer = BatchWriter("telemetry", self._write, max_queued)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{datetime.fromtimestamp(started, UTC):%Y%m%dT%H%M%S%f}-{os.getpid()}.sqlite3"
        meta = {"schema_version": SCHEMA_VERSION, "server_version": __version__, "model_name": model_name, "started_at": started}
        try:
            self._connection = sqlite3.connect(self.path, check_same_thread=False)
            self._connection.executescript(SCHEMA)
            self._set_meta(meta | self._drop_counts())
        except sqlite3.Error as error:
            raise OSError(f"{self.path}: {error}") from error
        self._writer.start()

    def on_step(self, record: StepRecord) -> None: ...

    def on_request(self, record: RequestRecord) -> None:
        self._writer.put(record)

    @property
    def num_dropped(self) -> int:
        """Rows that are not in the file."""
        return self._writer.num_dropped

    def close(self) -> None:
        """Write what is queued and end the file; returns in bounded time. Idempotent."""
        if self._writer.close():
            with suppress(sqlite3.Error):
                self._set_meta({"ended_at": time.time()} | self._drop_counts())
                self._connection.close()

    def _write(self, records: list[RequestRecord]) -> None:
        with self._connection:
            self._connection.executemany(INSERT, map(self._row, records))
        self._set_meta(self._drop_counts())

    def _set_meta(self, values: dict[str, object]) -> None:
        with self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())

    def _drop_counts(self) -> dict[str, object]:
        return {"dropped_queue_full": self._writer.num_refused, "dropped_write_failed": self._writer.num_failed}

    def _row(self, record: RequestRecord) -> tuple[object, ...]:
        return (
            record.request_id,
            record.trace_id,
            record.client_id,
            record.session_id,
            record.fairness_key,
            str(record.finish_reason),
            record.error_code,
            record.prompt_tokens,
            record.cached_tokens,
            record.output_tokens,
            record.num_preemptions,
            *map(self._since_epoch, (record.arrival_time, record.admitted_time, record.first_token_time, record.end_time)),
        )

    def _since_epoch(self, seconds: float | None) -> float | None:
        return None if seconds is None else self._epoch + seconds
