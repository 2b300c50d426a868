"""The files of the timeline: rotation, what is lost with a full queue or a lost folder, and that nobody waits for either."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from inference_server.core.phases import Phase, PhaseTime
from inference_server.core.plan import StepKind
from inference_server.core.records import StepRecord
from inference_server.observability.batch_writer import BatchWriter, Dropped
from inference_server.observability.run import Run
from inference_server.observability.timeline import MAX_FILES, Timeline


def step(step_id: int) -> StepRecord:
    return StepRecord(step_id, StepKind.DECODE, 1.0, 2.0, 1, 1, 1, 0, phases=(PhaseTime(Phase.COLLECT, 1.5, 2.0),))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_in_batches(timeline: Timeline, num_batches: int) -> None:
    """Write as the writer's thread does, but without its pauses."""
    for first in range(1, 10 * num_batches, 10):
        timeline.write([step(number) for number in range(first, first + 10)], Dropped())


def test_files_rotate_by_size_the_oldest_go_and_each_says_what_it_is(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "made" / "here", Run("the model", lambda: 0.0, started_at=0.0, epoch=0.0), max_file_bytes=700)
    write_in_batches(timeline, 12)
    timeline.close(Dropped(), finished=True)
    files = sorted((tmp_path / "made" / "here").iterdir())
    assert len(files) == MAX_FILES
    assert all(file.stat().st_size < 700 + 800 for file in files), "a file ends with the batch that fills it"
    for number, file in enumerate(files, 12 - MAX_FILES + 1):
        about, *events = lines(file)
        assert about == {"event": "run", "ts": 0, "schema": 1, "version": about["version"], "model": "the model", "file": number}
        assert [event["step"] for event in events] == list(range(10 * number - 9, 10 * number + 1))
        assert events[0] == {"event": "collect", "ts": 1_500_000, "dur": 500_000, "step": 10 * number - 9}


def test_a_full_queue_costs_events_that_are_counted_and_never_time(tmp_path: Path) -> None:
    writer = BatchWriter("timeline", Timeline(tmp_path, Run.begin("m", time.monotonic)), max_queued=100)
    started = time.monotonic()
    for number in range(50_000):
        writer.on_step(step(number))
    assert time.monotonic() - started < 2, "a full queue held the engine up"
    writer.close()
    (file,) = tmp_path.iterdir()
    written = lines(file)
    num_steps = sum(event["event"] == "collect" for event in written)
    assert num_steps >= 100
    assert writer.dropped.total == 50_000 - num_steps
    assert [event["total"] for event in written if event["event"] == "drops"][-1] == writer.dropped.total


def test_what_cannot_be_written_is_counted_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = BatchWriter("timeline", Timeline(tmp_path / "gone", Run.begin("m", time.monotonic), max_file_bytes=1))
    shutil.rmtree(tmp_path / "gone")
    for number in range(2500):  # more than one batch
        writer.on_step(step(number))
    writer.close()
    assert writer.dropped.total == 2500
    assert caplog.text.count("timeline cannot be written") == 1


def test_a_folder_that_cannot_be_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        Timeline(tmp_path / "file", Run.begin("m", time.monotonic))
