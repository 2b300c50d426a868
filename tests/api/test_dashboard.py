"""The dashboard's page, files and snapshot over HTTP, without a browser."""

import re
import threading
from pathlib import Path

import pytest
from api_server import TestServer, running

import inference_server

STATIC = Path(inference_server.__file__).parent / "static"
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_a_browser_gets_the_page_and_others_the_index(server: TestServer) -> None:
    page = server.client.get("/", headers=BROWSER)
    assert page.headers["content-type"].startswith("text/html")
    assert page.text.startswith("<!doctype html>")
    index = server.client.get("/")
    assert index.headers["content-type"] == "application/json"
    assert page.headers["vary"] == index.headers["vary"] == "Accept"


def test_the_page_may_load_nothing_but_its_own_files(server: TestServer) -> None:
    files = [f"/static/{path.relative_to(STATIC)}" for path in STATIC.rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in ("/", *files):
        answer = server.client.get(path, headers=BROWSER)
        assert answer.status_code == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        if not path.endswith(".svg"):  # SVGs name their XML namespace by an address
            assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", answer.text), path
    assert sum(path.stat().st_size for path in STATIC.rglob("*") if path.is_file()) < 1_000_000


@pytest.mark.parametrize("path", ["/static/nothing.js", "/static/../server.py", "/static/..%2f..%2fserver.py", "/static/", "/static/js"])
def test_nothing_but_files_of_the_page_is_served(server: TestServer, path: str) -> None:
    answer = server.client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_unchanged_files_are_not_sent_again(server: TestServer) -> None:
    etag = server.client.get("/static/style.css").headers["etag"]
    assert server.client.get("/static/style.css", headers={"If-None-Match": etag}).status_code == 304


def test_the_snapshot_shows_rows_the_queue_and_the_past() -> None:
    with running(max_batch_size=1) as server:
        server.client.post("/generate", json={"text": "ended"})
        server.backend.step_s = 0.01
        body = {"text": "abc", "ignore_eos": True, "max_tokens": 40}
        call = {"target": server.client.post, "args": ("/generate",), "kwargs": {"json": body}}
        posts = [threading.Thread(**call) for _ in range(3)]
        for post in posts:
            post.start()
        server.wait_for(lambda s: s["queue_depth"] == 2)
        state = server.client.get("/dashboard/state").json()
        assert [row["status"] for row in state["requests"]] == ["running", "waiting", "waiting"]
        assert state["scheduler"]["queue_depth"] == 2
        assert state["health"] == "ok"
        assert [row["finish_reason"] for row in state["ended"]] == ["stop"]
        assert state["simulator"]["running"] is False
        for post in posts:
            post.join()
        server.wait_until_free()
    assert len(state["history"]["tokens"]) == len(state["history"]["requests"]) == 59


def test_the_snapshot_needs_no_model_and_no_simulator() -> None:
    gate = threading.Event()

    def load() -> object:
        gate.wait(20)
        raise RuntimeError("it was only a test")

    with running(load=load, enable_simulator=False) as server:  # type: ignore[arg-type]
        state = server.client.get("/dashboard/state").json()
        gate.set()
    assert (state["health"], state["requests"], state["simulator"]) == ("loading", [], None)
