"""A pytest plugin: where several processes share the tests (pytest-xdist), one that is marked `alone` runs beside no other."""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def turn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tests share a room, and one that is to be alone takes all of it.

    Who waits for the room stands in its door, so that nobody slips in before a test that waits to be alone.
    """
    with ExitStack() as stack:
        if hasattr(request.config, "workerinput"):
            run = tmp_path_factory.getbasetemp().parent  # each process has a folder in that of the run
            alone = request.node.get_closest_marker("alone") is not None
            with locked(run / "door", fcntl.LOCK_EX):
                stack.enter_context(locked(run / "room", fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        yield


@contextmanager
def locked(path: Path, how: int) -> Iterator[None]:
    """Hold a lock that all processes of the run know. The system takes it back from one that dies."""
    with path.open("w") as file:
        fcntl.flock(file, how)
        yield
