"""Build a folder exactly once, whatever happens: the one place that makes conversions atomic and exclusive.

A folder that has lost a file since, or the end of one, is built again. Bytes that changed in place are not looked for.
"""

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from inference_server.checkpoints.errors import CheckpointError

_SIZES = "sizes.json"  # of the other files, written when all of them are there

logger = logging.getLogger(__name__)


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return `target`, after `build(folder)` has filled it if it does not exist yet or is damaged.

    The folder appears under its name only when complete. Processes that ask at once wait for the first; what an
    interrupted run left behind is removed by the next. Raises `CheckpointError` if the disk refuses.
    """
    if _is_whole(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target):
            if not _is_whole(target):
                _build(target, build)
    except OSError as error:
        raise CheckpointError(f"{target}: cannot be written ({error.strerror or error})") from error
    return target


def _is_whole(folder: Path) -> bool:
    try:
        return _sizes(folder).items() >= json.loads((folder / _SIZES).read_text(encoding="utf-8")).items()
    except (OSError, ValueError, AttributeError):
        return False


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


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
        (partial / _SIZES).write_text(json.dumps(_sizes(partial)), encoding="utf-8")
        if target.exists():
            logger.warning("%s is damaged and has been made anew", target)
            shutil.rmtree(target)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
