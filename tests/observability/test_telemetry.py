"""The file of requests: what a row says, that nobody waits for the writing, and that dropped rows are counted."""

import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from ended_request import ENDED

from inference_server.core.clock import Clock
from inference_server.core.request import RequestOrigin
from inference_server.observability.batch_writer import MAX_QUEUED, BatchWriter
from inference_server.observability.run import Run
from inference_server.observability.telemetry import SCHEMA_VERSION, Telemetry


def started(folder: Path, clock: Clock = time.monotonic, max_queued: int = MAX_QUEUED) -> tuple[Telemetry, BatchWriter]:
    telemetry = Telemetry(folder, Run.begin("the model", clock))
    return telemetry, BatchWriter("telemetry", telemetry, max_queued)


def read(telemetry: Telemetry, query: str) -> list[dict[str, Any]]:
    connection = sqlite3.connect(f"file:{telemetry.path}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute(query)]
    finally:
        connection.close()


def meta(telemetry: Telemetry) -> dict[str, Any]:
    return {row["key"]: row["value"] for row in read(telemetry, "SELECT * FROM meta")}


def test_a_row_says_when_each_phase_was_and_how_long_it_took(tmp_path: Path) -> None:
    telemetry, writer = started(tmp_path / "made" / "here", lambda: 110.0)
    before = time.time()
    writer.on_request(ENDED)
    writer.close()
    (row,) = read(telemetry, "SELECT * FROM requests WHERE trace_id = 'trace'")
    assert row["arrival_time"] == pytest.approx(before - 10, abs=5)
    times = ("arrival_time", "admitted_time", "first_token_time", "end_time")
    assert [round(row[name] - row["arrival_time"], 3) for name in times] == [0, 0.5, 2, 6]
    phases = ("queue_s", "prefill_s", "decode_s", "ttft_s", "total_s")
    assert [round(row[name], 3) for name in phases] == [0.5, 1.5, 4, 2, 6]
    expected = {"request_id": "r1", "client_id": "client", "session_id": "session", "fairness_key": "key:1", "finish_reason": "stop"}
    expected |= {"error_code": None, "prompt_tokens": 7, "cached_tokens": 4, "output_tokens": 3, "preemptions": 2}
    assert expected.items() <= row.items()


def test_a_request_that_never_ran_has_only_waited(tmp_path: Path) -> None:
    telemetry, writer = started(tmp_path, lambda: 110.0)
    writer.on_request(replace(ENDED, admitted_time=None, first_token_time=None, error_code="overloaded"))
    writer.close()
    (row,) = read(telemetry, "SELECT * FROM requests")
    assert [row[name] for name in ("admitted_time", "prefill_s", "decode_s", "ttft_s")] == [None] * 4
    assert round(row["queue_s"], 3) == 6


def test_a_trace_may_have_many_requests_and_is_found_by_its_index(tmp_path: Path) -> None:
    telemetry, writer = started(tmp_path)
    for index in range(3000):
        writer.on_request(replace(ENDED, request_id=str(index), origin=RequestOrigin(trace_id=str(index % 10))))
    writer.close()
    assert read(telemetry, "SELECT count(*) AS n FROM requests WHERE trace_id = '3'") == [{"n": 300}]
    (plan,) = read(telemetry, "EXPLAIN QUERY PLAN SELECT * FROM requests WHERE trace_id = '3'")
    assert "requests_by_trace" in plan["detail"]


def test_meta_says_what_the_run_was_and_whether_it_ended(tmp_path: Path) -> None:
    telemetry, writer = started(tmp_path)
    open_meta = meta(telemetry)
    assert (open_meta["schema_version"], open_meta["model_name"]) == (SCHEMA_VERSION, "the model")
    assert (open_meta["dropped_queue_full"], open_meta["dropped_write_failed"]) == (0, 0)
    assert "ended_at" not in open_meta
    writer.close()
    writer.close()
    assert meta(telemetry)["ended_at"] >= open_meta["started_at"]


@pytest.mark.alone
def test_rows_are_there_for_readers_within_a_second_while_the_run_goes_on(tmp_path: Path) -> None:
    telemetry, writer = started(tmp_path)
    writer.on_request(ENDED)
    end = time.monotonic() + 1
    while not read(telemetry, "SELECT * FROM requests"):
        assert time.monotonic() < end
        time.sleep(0.01)
    writer.close()


def test_a_writer_that_hangs_costs_rows_and_never_the_engine_s_time(tmp_path: Path) -> None:
    telemetry, writer = started(tmp_path, max_queued=10)
    lock = sqlite3.connect(telemetry.path, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")  # sqlite waits 5 s for it
    done = Event()

    def engine_thread() -> None:
        for index in range(5000):
            writer.on_request(replace(ENDED, request_id=str(index)))
        done.set()

    Thread(target=engine_thread).start()
    assert done.wait(2), "a full queue held the engine up"
    lock.execute("ROLLBACK")
    writer.close()
    (count,) = read(telemetry, "SELECT count(*) AS n FROM requests")
    assert 10 <= count["n"] < 5000
    assert meta(telemetry)["dropped_queue_full"] == 5000 - count["n"]


def test_rows_that_cannot_be_written_are_counted_and_the_next_are_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    telemetry, writer = started(tmp_path)
    writer.on_request(ENDED)
    writer.on_request(ENDED)  # the same primary key, so that the batch fails as on a full disk
    deadline = time.monotonic() + 5
    while not caplog.records:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    writer.on_request(replace(ENDED, request_id="r2"))
    writer.close()
    assert [row["request_id"] for row in read(telemetry, "SELECT * FROM requests")] == ["r2"]
    assert meta(telemetry)["dropped_write_failed"] == 2
    assert "cannot be written" in caplog.text


def test_a_folder_that_cannot_be_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        Telemetry(tmp_path / "file", Run.begin("model", time.monotonic))
