"""Build a folder exactly once, whatever happens: the one place that makes conversions atomic and exclusive."""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from inference_server.checkpoints.errors import CheckpointError

logger = logging.getLogger(__name__)


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return `target`, after `build(folder)` has filled it if it does not exist yet.

    The folder appears under its name only when complete. Processes that ask at once wait for the first; what an
    interrupted run left behind is removed by the next. Raises `CheckpointError` if the disk refuses.
    """
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target):
            if not target.is_dir():
                _build(target, build)
    except OSError as error:
        raise CheckpointError(f"{target}: cannot be written ({error.strerror or error})") from error
    return target


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    lock = FileLock(target.with_name(target.name + ".lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        logger.info("another process is preparing %s, waiting for it", target)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _build(target: Path, build: Callable[[Path], None]) -> None:
    partial = target.with_name(target.name + ".partial")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir()
    try:
        build(partial)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
