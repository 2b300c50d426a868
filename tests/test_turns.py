"""Two processes share tests; one that is marked `alone` has both to itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = '''
import time
from pathlib import Path

import pytest

ROOM = Path(__file__).parent / "room"
ME = Path(__file__).stem


@pytest.fixture
def others():
    """What others are in the room; this test is in it too."""
    mine = ROOM / ME
    mine.touch()
    yield lambda: set(ROOM.iterdir()) - {mine}
    mine.unlink()


def test_two_meet(others):
    end = time.monotonic() + 20
    while not others():
        assert time.monotonic() < end
    (ROOM.parent / f"{ME} met").touch()
    while len(list(ROOM.parent.glob("* met"))) < 2:
        assert time.monotonic() < end


@pytest.mark.parametrize("number", range(5))
def test_short(others, number):
    time.sleep(0.02)


@pytest.mark.alone
@pytest.mark.parametrize("number", range(3))
def test_nobody_comes(others, number):
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        assert not others()


@pytest.mark.parametrize("number", range(5))
def test_short_again(others, number):
    time.sleep(0.02)
'''


def test_who_is_to_be_alone_is_alone(tmp_path: Path) -> None:
    pytest.importorskip("xdist", reason="without pytest-xdist every test is alone")
    (tmp_path / "room").mkdir()
    for name in ("test_one", "test_two"):
        (tmp_path / f"{name}.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "turns", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    done = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "28 passed" in done.stdout
