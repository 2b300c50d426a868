"""`python -m inference_server` as a process of its own, for tests that meet the product as its user does."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

SOURCE = Path(__file__).parents[1] / "src"


@contextmanager
def serving(folder: Path, startup_s: float = 300, **settings: str) -> Iterator[tuple[str, Path]]:
    """The address of a ready server with these settings, which works in `folder`, and the file of its log."""
    log = folder / "log"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PORT": "0", **settings}
    with log.open("wb") as file:
        child = subprocess.Popen(
            [sys.executable, "-m", "inference_server"], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=file
        )
    assert child.stdout is not None
    try:
        address = child.stdout.readline().decode().split()[-1].rstrip("/")
        end = time.monotonic() + startup_s
        # Reading a tokenizer and preparing it for grammars hold the interpreter for seconds each, and nothing answers meanwhile.
        while httpx.get(f"{address}/ready", timeout=60, trust_env=False).status_code != 200:
            assert child.poll() is None, log.read_text()
            assert time.monotonic() < end
            time.sleep(0.5)
        yield address, log
    finally:
        child.terminate()
        child.communicate(timeout=60)
