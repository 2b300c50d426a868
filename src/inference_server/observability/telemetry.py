"""`Telemetry`: every request that ended as a row of SQLite, one file a run, for questions that percentiles do not answer.

A `BatchWriter` has it commit twice a second in WAL mode, so a process that is killed loses no more than that, and the file can be read
while it grows. Its table `meta` says how many rows it lacks. Neither prompts nor answers are in it.
"""

import sqlite3
from contextlib import suppress
from pathlib import Path

from inference_server import __version__
from inference_server.core.records import RequestRecord
from inference_server.observability.batch_writer import Dropped
from inference_server.observability.run import Run

SCHEMA_VERSION = 1
# Times are seconds since the epoch; NULL where a request did not get that far.
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
    """A `RecordOutput`. Construction makes the folder and the file; raises OSError."""

    takes_steps = False

    def __init__(self, folder: Path, run: Run) -> None:
        self._run = run
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{run.file_stem}.sqlite3"
        about = {"server_version": __version__, "model_name": run.model_name, "started_at": run.started_at}
        try:
            self._connection = sqlite3.connect(self.path, check_same_thread=False)
            self._connection.executescript(SCHEMA)
            self._set_meta({"schema_version": SCHEMA_VERSION, **about, **_drop_counts(Dropped())})
        except sqlite3.Error as error:
            raise OSError(f"{self.path}: {error}") from error

    def write(self, records: list[RequestRecord], dropped: Dropped) -> None:
        with self._connection:
            self._connection.executemany(INSERT, map(self._row, records))
        self._set_meta(_drop_counts(dropped))

    def close(self, dropped: Dropped, finished: bool) -> None:
        if finished:
            with suppress(sqlite3.Error):
                self._set_meta({"ended_at": self._run.now(), **_drop_counts(dropped)})
                self._connection.close()

    def _set_meta(self, values: dict[str, object]) -> None:
        with self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())

    def _row(self, record: RequestRecord) -> tuple[object, ...]:
        return (
            record.request_id,
            record.origin.trace_id,
            record.origin.client_id,
            record.origin.session_id,
            record.origin.fairness_key,
            str(record.finish_reason),
            record.error_code,
            record.prompt_tokens,
            record.cached_tokens,
            record.output_tokens,
            record.num_preemptions,
            *map(self._since_epoch, (record.arrival_time, record.admitted_time, record.first_token_time, record.end_time)),
        )

    def _since_epoch(self, seconds: float | None) -> float | None:
        return None if seconds is None else self._run.epoch + seconds


def _drop_counts(dropped: Dropped) -> dict[str, object]:
    return {"dropped_queue_full": dropped.queue_full, "dropped_write_failed": dropped.write_failed}
