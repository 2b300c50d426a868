"""The life of the process: it drains on the first signal, exits on the second, and fails cleanly if the model cannot be loaded.

Each test runs a real process, once as plain uvicorn and once as the command line, since both must behave alike.
"""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

HERE = Path(__file__).parent
SLOW = {"text": "abcdefghij", "ignore_eos": True, "max_tokens": 60, "stream": True}
ENDLESS = SLOW | {"max_tokens": 2000}


@dataclass(frozen=True, slots=True)
class Served:
    """A server process, the file of all its output, and a client of it."""

    child: subprocess.Popen[bytes]
    log: Path
    client: httpx.Client

    def ended(self, limit_s: float = 20) -> str:
        """Wait until it has ended. Returns all that it wrote."""
        self.child.wait(limit_s)
        return self.log.read_text()


@contextmanager
def process(kind: str, **settings: str) -> Iterator[Served]:
    """Run a server on a port that the system chooses for it: one that was free a moment ago may be another's by now."""
    command = {"uvicorn": ["-m", "uvicorn", "serve_echo:app", "--port", "0"], "command line": ["serve_echo.py"]}[kind]
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parent / 'src'}:{HERE}", "PORT": "0", **settings}
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as file:
            child = subprocess.Popen([sys.executable, *command], cwd=HERE, env=environment, stdout=file, stderr=subprocess.STDOUT)
        try:
            with httpx.Client(base_url=address(child, log), timeout=20, trust_env=False) as client:
                yield Served(child, log, client)
        finally:
            child.kill()
            child.wait()
            sys.stdout.write(log.read_text())  # pytest shows it when the test fails


def address(child: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + 60
    while not (said := re.search(r"http://[a-z0-9.]+:[0-9]+\b", log.read_text())):
        assert child.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    return said[0]


def wait_for_status(client: httpx.Client, path: str, status: int) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            if client.get(path).status_code == status:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("kind", ["uvicorn", "command line"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains(kind: str, signum: signal.Signals) -> None:
    with process(kind) as served:
        wait_for_status(served.client, "/ready", 200)
        with served.client.stream("POST", "/generate", json=SLOW) as answer:
            blocks = answer.iter_raw()
            raw = next(blocks)
            served.child.send_signal(signum)
            with httpx.Client(base_url=served.client.base_url, timeout=20, trust_env=False) as other:
                wait_for_status(other, "/ready", 503)
                assert other.get("/health").json()["status"] == "draining"
                refused = other.post("/generate", json=SLOW)
                assert refused.status_code == 503
                assert refused.headers["retry-after"]
            raw += b"".join(blocks)
        assert b'"finish_reason":"length"' in raw
        assert raw.endswith(b"data: [DONE]\n\n")
        output = served.ended()
        assert "draining; open requests: 1" in output
        assert "Traceback" not in output
        # uvicorn's own command ends by the SIGTERM that it was sent.
        assert served.child.returncode == (-signum if (kind, signum) == ("uvicorn", signal.SIGTERM) else 0)


@pytest.mark.parametrize("kind", ["uvicorn", "command line"])
def test_the_second_signal_exits_at_once(kind: str) -> None:
    with process(kind) as served:
        wait_for_status(served.client, "/ready", 200)
        with served.client.stream("POST", "/generate", json=ENDLESS) as answer:
            blocks = answer.iter_raw()
            raw = next(blocks)
            served.child.send_signal(signal.SIGTERM)
            with httpx.Client(base_url=served.client.base_url, timeout=20, trust_env=False) as other:
                wait_for_status(other, "/ready", 503)
            start = time.monotonic()
            served.child.send_signal(signal.SIGINT)
            raw += b"".join(blocks)
            assert b'"code": "aborted"' in raw
            assert raw.endswith(b"data: [DONE]\n\n")
            assert served.child.wait(5) == 128 + signal.SIGINT
            assert time.monotonic() - start < 2


STATES = {
    "loading": {"SERVED_MODEL_NAME": "slow"},
    "idle": {},
    "overloaded": {"MAX_BATCH_SIZE": "1", "MAX_QUEUE_SIZE": "2"},
    "stalled": {"SERVED_MODEL_NAME": "hanging"},
}
LEFT_BEHIND = 128 + signal.SIGTERM


@contextmanager
def in_state(state: str, drain_s: float) -> Iterator[tuple[Served, list[Future[httpx.Response]]]]:
    """A server, and the answers that its clients wait for: to one running and two waiting requests, or to one in a step that hangs."""
    with ThreadPoolExecutor(3) as pool, process("command line", DRAIN_TIMEOUT_S=str(drain_s), **STATES[state]) as served:
        wait_for_status(served.client, "/health" if state == "loading" else "/ready", 200)
        post = partial(httpx.post, f"{served.client.base_url}/generate", timeout=60, trust_env=False)
        ask = partial(pool.submit, post, json=ENDLESS | {"stream": False})
        answers = [ask()] if state in ("overloaded", "stalled") else []
        while answers and served.client.get("/health").json()["status"] != "ok":
            time.sleep(0.02)
        if state == "overloaded":
            while not served.client.get("/scheduler/stats").json()["active_rows"]:
                time.sleep(0.02)
            answers += [ask(), ask()]  # the first has left the queue, which has room for two
            wait_for_status(served.client, "/ready", 503)
        yield served, answers


def all_told(answers: list[Future[httpx.Response]]) -> bool:
    """Whether every client got an answer, and each that was let in was told that its answer was cut short."""
    codes = {answer.result().json()["error"]["code"] for answer in answers}
    return codes <= {"aborted", "overloaded"} and ("aborted" in codes or not answers)


@pytest.mark.parametrize(("state", "code"), [("idle", 0), ("overloaded", 0), pytest.param("stalled", LEFT_BEHIND, marks=pytest.mark.heavy)])
def test_one_signal_ends_the_process_in_any_state(state: str, code: int) -> None:
    with in_state(state, drain_s=0.3) as (served, answers):
        served.child.send_signal(signal.SIGTERM)
        assert served.child.wait(20) == code
        assert all_told(answers)


@pytest.mark.parametrize(
    ("state", "codes"),
    [
        pytest.param("loading", {LEFT_BEHIND, 128 + signal.SIGINT}, marks=pytest.mark.heavy),
        pytest.param("idle", {0, 128 + signal.SIGINT}, marks=pytest.mark.heavy),
        ("overloaded", {128 + signal.SIGINT}),
        ("stalled", {128 + signal.SIGINT}),
    ],
)
def test_two_signals_end_the_process_at_once_in_any_state(state: str, codes: set[int]) -> None:
    with in_state(state, drain_s=30) as (served, answers):
        served.child.send_signal(signal.SIGTERM)
        time.sleep(0.1)  # two signals at once would count as one
        served.child.send_signal(signal.SIGINT)
        assert served.child.wait(5) in codes
        assert all_told(answers)


@pytest.mark.parametrize("kind", ["uvicorn", "command line"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_process_whose_model_loads(kind: str, signum: signal.Signals) -> None:
    """The interpreter must not be finalised while the thread loads: its native code would abort the process."""
    with process(kind, SERVED_MODEL_NAME="slow") as served:
        wait_for_status(served.client, "/health", 200)
        served.child.send_signal(signum)
        output = served.ended(limit_s=5)
        assert served.child.returncode == 128 + signum
        assert output.count("left behind") == 1
        assert "Traceback" not in output


def test_what_outlives_the_drain_is_ended() -> None:
    with process("command line", DRAIN_TIMEOUT_S="0.3") as served:
        wait_for_status(served.client, "/ready", 200)
        with served.client.stream("POST", "/generate", json=ENDLESS) as answer:
            blocks = answer.iter_raw()
            raw = next(blocks)
            served.child.send_signal(signal.SIGTERM)
            raw += b"".join(blocks)
        assert b'"code": "aborted"' in raw
        assert raw.endswith(b"data: [DONE]\n\n")
        served.child.wait(10)


@pytest.mark.parametrize("kind", ["uvicorn", "command line"])
def test_a_model_that_cannot_be_loaded_ends_the_process(kind: str) -> None:
    with process(kind, SERVED_MODEL_NAME="broken") as served:
        output = served.ended()
        assert served.child.returncode == 1
        assert output.count("the model is broken in one line") == 1
        assert "Traceback" not in output


@pytest.mark.parametrize(
    ("model", "said", "where"), [("hanging", "makes no progress", "in collect"), ("dying", "the engine has failed", "in die")]
)
def test_an_engine_past_help_ends_its_streams_and_the_process(model: str, said: str, where: str) -> None:
    with process("command line", SERVED_MODEL_NAME=model, STALL_AFTER_S="0.1") as served:
        wait_for_status(served.client, "/ready", 200)
        raw = served.client.post("/generate", json={"text": "a", "stream": True}).content
        assert b'"code": "engine_dead"' in raw
        assert said.encode() in raw
        output = served.ended()
        assert served.child.returncode == 1
        assert where in output
        assert "exiting" in output


def telemetry_of(folder: Path, query: str) -> list[tuple[object, ...]]:
    (path,) = folder.glob("*.sqlite3")
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_telemetry_is_whole_after_a_signal(tmp_path: Path) -> None:
    with process("uvicorn", TELEMETRY_DIR=str(tmp_path), DRAIN_TIMEOUT_S="0.1") as served:
        wait_for_status(served.client, "/ready", 200)
        with served.client.stream("POST", "/generate", json=ENDLESS, headers={"X-Trace-Id": "the-trace"}) as answer:
            blocks = answer.iter_raw()
            next(blocks)
            served.child.send_signal(signal.SIGTERM)
            b"".join(blocks)
        served.child.wait(10)
    assert telemetry_of(tmp_path, "SELECT trace_id, finish_reason, error_code FROM requests") == [("the-trace", "abort", "aborted")]
    assert len(telemetry_of(tmp_path, "SELECT * FROM meta WHERE key = 'ended_at'")) == 1


def test_the_address_is_printed() -> None:
    with process("command line") as served:
        wait_for_status(served.client, "/ready", 200)
        served.child.send_signal(signal.SIGTERM)
        output = served.ended()
        assert served.child.returncode == 0
        assert f"inference-server: http://localhost:{served.client.base_url.port}/" in output


def test_importing_the_server_builds_nothing() -> None:
    probe = (
        "import sys, inference_server.server as s; assert 'app' not in vars(s); assert 'torch' not in sys.modules; "
        "assert s.app is s.app and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, env={**os.environ, "PYTHONPATH": str(HERE.parent / "src")}, cwd=HERE)


@pytest.mark.parametrize(("name", "value"), [("MAX_QUEUE_SIZE", "none"), ("TELEMETRY_DIR", f"{__file__}/no/folder")])
def test_bad_settings_are_one_line(name: str, value: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src"), name: value}
    for command in (["-m", "uvicorn", "inference_server.server:app"], ["-m", "inference_server"]):
        failed = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, cwd=HERE, timeout=60)
        assert failed.returncode == 2
        assert failed.stderr.count("\n") == 1
        assert name in failed.stderr
