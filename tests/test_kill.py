"""kill -9 at a bad moment, and the next start: nothing has to be repaired, and nothing that was written is lost."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from server_process import started, wait_ready

FAKE = Path(__file__).parent / "chaos" / "serve_chaos.py"


@contextmanager
def busy(address: str, path: str, body: dict[str, object], num_clients: int = 6) -> Iterator[list[float]]:
    """Clients that send one request after the other until the server is gone. Yields when answers were whole, as seconds of the epoch."""
    answered: list[float] = []

    def client() -> None:
        with suppress(httpx.TransportError), httpx.Client(base_url=address, timeout=60, trust_env=False) as http:
            while True:
                if http.post(path, json=body).status_code == 200:
                    answered.append(time.time())

    threads = [threading.Thread(target=client, daemon=True) for _ in range(num_clients)]
    for thread in threads:
        thread.start()
    try:
        yield answered
    finally:
        for thread in threads:
            thread.join(60)


def ask(path: Path, query: str) -> list[tuple[object, ...]]:
    """The answer of a telemetry file to a query, after a check that the file is whole."""
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def num_rows(path: Path) -> int:
    return len(ask(path, "SELECT request_id FROM requests"))


@pytest.mark.alone
def test_telemetry_of_a_killed_run_is_whole_but_for_its_last_second(tmp_path: Path) -> None:
    settings = {
        "MODEL_NAME": "fake",
        "CHAOS_FAULTS": "0",
        "CHAOS_SEED": "0",
        "KV_CACHE_NUM_BLOCKS": "256",
        "TELEMETRY_DIR": str(tmp_path / "telemetry"),
    }
    body = {"text": "hi", "max_tokens": 8}
    with started(tmp_path, [str(FAKE)], **settings) as (child, address):
        wait_ready(child, address)
        with busy(address, "/generate", body) as answered:
            while not answered or time.time() < answered[0] + 1.5:  # so that some answers are more than a second older than the end
                time.sleep(0.05)
            killed = time.time()
            child.kill()
    with started(tmp_path, [str(FAKE)], **settings) as (child, address):
        wait_ready(child, address)
        first, second = sorted((tmp_path / "telemetry").glob("*.sqlite3"))
        assert num_rows(first) >= sum(moment < killed - 1 for moment in answered) > 0
        assert ask(first, "SELECT * FROM meta WHERE key = 'ended_at'") == []
        assert httpx.post(f"{address}/generate", json=body, trust_env=False).status_code == 200
        assert second != first


@pytest.mark.heavy
def test_a_kill_while_weights_are_converted_and_one_under_load_leave_a_whole_cache(tmp_path: Path) -> None:
    settings = {"MODEL_CACHE_DIR": str(tmp_path / "cache"), "TELEMETRY_DIR": str(tmp_path / "telemetry"), "KV_CACHE_NUM_BLOCKS": "256"}
    with started(tmp_path, **settings) as (child, _):
        end = time.monotonic() + 60
        while not list((tmp_path / "cache").glob("*.partial/*")):
            assert child.poll() is None and time.monotonic() < end
            time.sleep(0.01)
        child.kill()
    body = {"text": "What is the capital of France?", "max_tokens": 16}
    with started(tmp_path, **settings) as (child, address):
        wait_ready(child, address)
        converted = files(tmp_path / "cache")
        assert not any(".partial" in name for name in converted)
        with busy(address, "/generate", body) as answered:
            while len(answered) < 6 or time.time() < answered[0] + 1.5:  # rows of the last second may be lost
                assert child.poll() is None
                time.sleep(0.05)
            child.kill()
    with started(tmp_path, **settings) as (child, address):
        wait_ready(child, address)
        assert files(tmp_path / "cache") == converted
        assert "Paris" in httpx.post(f"{address}/generate", json=body, timeout=60, trust_env=False).json()["text"]
        assert sum(map(num_rows, (tmp_path / "telemetry").glob("*.sqlite3"))) > 0


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and modification time of each file but the locks."""
    found = ((path, path.stat()) for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): (stat.st_size, stat.st_mtime_ns) for path, stat in found}
