"""`Telemetry`: every request that ended as a row of SQLite, one file a run, for questions that percentiles do not answer.

A thread of its own writes what the engine puts into a bounded queue; what does not fit, or cannot be written, is counted and dropped.
It commits twice a second in WAL mode, so a process that is killed loses no more than that, and the file can be read while it grows.
Neither prompts nor answers are in it.
"""

import logging
import os
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Thread

from inference_server import __version__
from inference_server.core.clock import Clock
from inference_server.core.records import RequestRecord, StepRecord

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
COMMIT_S = 0.5
MAX_QUEUED = 10_000
MAX_BATCH = 1000
CLOSE_S = 2.0

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Drops:
    """Rows that are not in the file. Each count has one writer: the engine thread, and the thread that writes."""

    queue_full: int = 0
    write_failed: int = 0


class Telemetry:
    """A `RecordSink`. Construction makes the folder and the file and starts the thread; raises OSError."""

    def __init__(self, folder: Path, model_name: str, clock: Clock, max_queued: int = MAX_QUEUED) -> None:
        """clock: the engine's."""
        started = time.time()
        self._epoch = started - clock()  # what turns the engine's seconds into those since the epoch
        self._drops = _Drops()
        self._queue: Queue[RequestRecord | None] = Queue(max_queued)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{datetime.fromtimestamp(started, UTC):%Y%m%dT%H%M%S%f}-{os.getpid()}.sqlite3"
        meta = {"schema_version": SCHEMA_VERSION, "server_version": __version__, "model_name": model_name, "started_at": started}
        try:
            self._connection = sqlite3.connect(self.path, check_same_thread=False)
            self._connection.executescript(SCHEMA)
            self._set_meta(meta | self._drop_counts())
        except sqlite3.Error as error:
            raise OSError(f"{self.path}: {error}") from error
        self._thread = Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def on_step(self, record: StepRecord) -> None: ...

    def on_request(self, record: RequestRecord) -> None:
        try:
            self._queue.put_nowait(record)
        except Full:
            self._drops.queue_full += 1

    def close(self) -> None:
        """Write what is queued and end the thread; returns after `CLOSE_S` at the latest. Idempotent."""
        with suppress(Full):
            self._queue.put(None, timeout=CLOSE_S)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        open_ = True
        while open_:
            batch = self._next_batch()
            open_ = batch[-1] is not None
            self._write([self._row(record) for record in batch if record is not None])
        with suppress(sqlite3.Error):
            self._set_meta({"ended_at": time.time()})
            self._connection.close()

    def _next_batch(self) -> list[RequestRecord | None]:
        """Waits for a record, and `COMMIT_S` for more. None, the last of all, is the end."""
        batch = [self._queue.get()]
        end = time.monotonic() + COMMIT_S
        with suppress(Empty):
            while batch[-1] is not None and len(batch) < MAX_BATCH:
                batch.append(self._queue.get(timeout=max(0.0, end - time.monotonic())))
        return batch

    def _write(self, rows: list[tuple[object, ...]]) -> None:
        try:
            with self._connection:
                self._connection.executemany(INSERT, rows)
            self._set_meta(self._drop_counts())
        except sqlite3.Error as error:
            if not self._drops.write_failed:
                logger.error("telemetry cannot be written: %s", error)
            self._drops.write_failed += len(rows)

    def _set_meta(self, values: dict[str, object]) -> None:
        with self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())

    def _drop_counts(self) -> dict[str, object]:
        return {"dropped_queue_full": self._drops.queue_full, "dropped_write_failed": self._drops.write_failed}

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
