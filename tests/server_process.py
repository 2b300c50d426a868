"""The server in a process of its own, for tests that use the product as its users do."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

SOURCE = Path(__file__).parents[1] / "src"


@contextmanager
def started(
    folder: Path, command: Sequence[str] = ("-m", "inference_server"), **settings: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start a server with these settings, which works in `folder` and logs to `folder/log`. Yields it and its address; kills it at last."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PORT": "0", **settings}
    with (folder / "log").open("ab") as log:
        child = subprocess.Popen([sys.executable, *command], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log)
    assert child.stdout is not None
    try:
        line = child.stdout.readline().decode()
        assert line, (folder / "log").read_text()
        yield child, line.split()[-1].rstrip("/")
    finally:
        child.kill()
        child.communicate()


def wait_ready(child: subprocess.Popen[bytes], address: str, limit_s: float = 300) -> None:
    """Wait until the server is ready. Reading a tokenizer, and preparing it for grammars, each hold the interpreter for seconds, in which
    nothing answers.
    """
    end = time.monotonic() + limit_s
    while httpx.get(f"{address}/ready", timeout=60, trust_env=False).status_code != 200:
        assert child.poll() is None, "the server has ended; its log says why"
        assert time.monotonic() < end
        time.sleep(0.1)


@contextmanager
def serving(folder: Path, startup_s: float = 300, **settings: str) -> Iterator[tuple[str, Path]]:
    """Run a server with these settings. Yields its address once it is ready, and the file of its log."""
    with started(folder, **settings) as (child, address):
        wait_ready(child, address, startup_s)
        yield address, folder / "log"
        child.terminate()
        child.wait(60)
