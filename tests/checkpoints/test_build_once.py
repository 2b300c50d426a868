"""The folder cache: one process builds, and no result is ever half written, whichever process is interrupted."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from inference_server.checkpoints.build_once import build_once
from inference_server.checkpoints.errors import CheckpointError


def write_slowly(folder: Path) -> None:
    (folder / "first").write_text(str(os.getpid()))
    time.sleep(0.5)
    (folder / "second").write_text(str(os.getpid()))
    with (folder.parent / "builds").open("a") as log:
        log.write("x")


def build_and_die(folder: Path) -> None:
    (folder / "first").write_text("half")
    os._exit(9)


def run_all(*processes: multiprocessing.process.BaseProcess) -> None:
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)


def test_processes_that_ask_at_once_build_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    target = tmp_path / "model"
    run_all(*(context.Process(target=build_once, args=(target, write_slowly)) for _ in range(3)))
    assert (tmp_path / "builds").read_text() == "x"
    assert (target / "first").read_text() == (target / "second").read_text()


def test_a_killed_build_leaves_nothing_that_counts_and_the_next_cleans_up(tmp_path: Path) -> None:
    target = tmp_path / "model"
    run_all(multiprocessing.get_context("spawn").Process(target=build_once, args=(target, build_and_die)))
    assert not target.exists()
    assert (tmp_path / "model.partial").exists()
    build_once(target, lambda folder: (folder / "whole").touch())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "model.lock"]
    assert sorted(p.name for p in target.iterdir()) == ["sizes.json", "whole"]


def test_a_failed_build_is_raised_and_removed(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(tmp_path / "model", fail)
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == []


def write_two(folder: Path) -> None:
    for name in ("first", "second"):
        (folder / name).write_text("whole")


def test_an_existing_folder_is_not_built_again(tmp_path: Path) -> None:
    target = build_once(tmp_path / "model", write_two)
    (target / "beside").touch()
    assert build_once(target, build_and_die) == target


@pytest.mark.parametrize("damage", ["first", "second", "sizes.json"])
@pytest.mark.parametrize("how", ["missing", "short"])
def test_a_damaged_folder_is_built_again(tmp_path: Path, damage: str, how: str, caplog: pytest.LogCaptureFixture) -> None:
    target = build_once(tmp_path / "model", write_two)
    path = target / damage
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    build_once(target, write_two)
    assert [(target / name).read_text() for name in ("first", "second")] == ["whole", "whole"]
    assert "is damaged and has been made anew" in caplog.text
    assert build_once(target, build_and_die) == target


def test_what_was_there_stays_when_it_cannot_be_built_again(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "first").touch()

    def fail(folder: Path) -> None:
        raise CheckpointError("no source")

    with pytest.raises(CheckpointError, match="no source"):
        build_once(tmp_path / "model", fail)
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["first"]


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be written"):
        build_once(tmp_path / "file" / "model", write_slowly)
