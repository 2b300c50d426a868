"""A pytest plugin: if several processes share the tests (pytest-xdist), a test marked `alone` runs beside no other."""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def turn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All tests share the lock `room`, and a test that is marked `alone` holds it exclusively.

    A test that waits for the room holds the lock `door`, so that no other slips in before a test that waits to be alone.
    """
    with ExitStack() as stack:
        if hasattr(request.config, "workerinput"):
            run = tmp_path_factory.getbasetemp().parent  # the run's folder, in which each process has its own
            alone = request.node.get_closest_marker("alone") is not None
            with locked(run / "door", fcntl.LOCK_EX):
                stack.enter_context(locked(run / "room", fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        yield


@contextmanager
def locked(path: Path, how: int) -> Iterator[None]:
    """Hold a lock that all processes of the run share. The system releases it if its process dies."""
    with path.open("w") as file:
        fcntl.flock(file, how)
        yield
