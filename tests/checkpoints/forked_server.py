"""The server in its own process, forked from one that has imported torch: for tests that start many servers and watch them give up."""

import os
import runpy
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended: its exit status, and what it wrote to standard error."""

    status: int | None
    errors: str


def forked_server(folder: Path, environment: Mapping[str, str], timeout_s: float = 100) -> Ended:
    """Run `python -m inference_server` in the folder until it ends. status: None if it does not."""
    context, log = get_context("forkserver"), folder / "errors"
    context.set_forkserver_preload(["pytest", "torch", "transformers", "inference_server.server"])
    process = context.Process(target=_serve, args=(folder, log, environment))
    process.start()
    process.join(timeout_s)
    status = process.exitcode
    process.kill()
    return Ended(status, log.read_text())


def _serve(folder: Path, log: Path, environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    os.chdir(folder)
    os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY), sys.stderr.fileno())
    sys.argv = ["inference_server"]
    runpy.run_module("inference_server", run_name="__main__")
