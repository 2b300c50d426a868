"""The benchmark beside peers: which are found, how tokens are counted, and what is said of peers that do not work."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import httpx
import pytest
from peers_cpu import OURS, Peer, Running, find, measure, start, table


class Fake(BaseHTTPRequestHandler):
    """A server that streams two chunks. Its class attribute is the count of tokens that the last chunk reports."""

    usage: ClassVar[Any] = {"completion_tokens": 5}

    def do_GET(self) -> None:
        self.answer(json.dumps({"data": [{"id": "m"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert (body["model"], body["stream"], body["temperature"]) == ("m", True, 0)
        if "unknown" in body:
            self.answer("no such field", 422)
        else:
            chunks = ({"choices": [{"text": "a"}], "usage": None}, {"choices": [], "usage": self.usage})
            self.answer("".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n")

    def answer(self, text: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Fake) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def running(url: str, name: str = OURS, **fields: object) -> Running:
    return Running(Peer(name, (), fields=fields), url, {})


def test_only_what_is_on_the_path_is_found(tmp_path: Path) -> None:
    peer = Peer("peer", ("peer-server", "--port", "{port}"))
    assert find(peer, str(tmp_path)) is None
    program = tmp_path / "peer-server"
    program.touch(mode=0o755)
    assert find(peer, str(tmp_path)) == (str(program), "--port", "{port}")


def test_every_number_of_clients_gets_a_rate(url: str) -> None:
    server = running(url)
    assert measure([server], (1, 3), max_tokens=5, rounds=2) == {}
    assert set(server.best) == {1, 3}
    assert all(rate > 0 for rate in server.best.values())


def test_a_server_that_fails_is_left_out_and_the_others_go_on(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    good, picky = running(url), running(url, "picky", unknown=True)
    servers = [picky, good, running("http://127.0.0.1:9", "gone")]
    failed = measure(servers, (1,), max_tokens=5, rounds=1)
    assert servers == [good]
    assert good.best
    assert failed["picky"] == "HTTP 422: no such field"
    assert set(failed) == {"picky", "gone"}
    monkeypatch.setattr(Fake, "usage", None)
    assert "does not say how many tokens" in measure([running(url)], (1,), max_tokens=5, rounds=1)[OURS]


def test_a_peer_that_cannot_start_says_its_last_line() -> None:
    code = "import sys; print('first'); sys.exit('the last words')"
    with ExitStack() as stack, pytest.raises(RuntimeError, match="not ready, exit code 1: the last words"):
        start(Peer("peer", ()), (sys.executable, "-c", code), {}, 20, stack)


def test_a_peer_is_ready_when_it_says_so_and_ends_with_the_run(tmp_path: Path) -> None:
    with ExitStack() as stack:
        # It serves its folder, in which a file shows that it is ready.
        (tmp_path / "health").touch()
        command = (sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1", "--directory", "{folder}")
        server = start(Peer("peer", ()), command, {"folder": tmp_path}, 20, stack)
        assert httpx.get(f"{server.url}/health", trust_env=False).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health", trust_env=False)


def test_ratios_are_ours_over_theirs() -> None:
    ours, peer = running(""), running("", "peer")
    ours.best, peer.best = {1: 30.0, 8: 120.0}, {1: 20.0, 8: 160.0}
    rows = table([ours, peer], (1, 8)).splitlines()
    assert rows[1].split() == ["this", "server", "30.0", "1.00", "120.0", "1.00"]
    assert rows[2].split() == ["peer", "20.0", "1.50", "160.0", "0.75"]
    assert "nan" in table([peer], (1, 8))
