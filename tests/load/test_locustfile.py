"""The Locust file against a real server. A stand-in for Locust runs its users, since Locust is no dependency."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest
from http_load.workloads import Workload
from load_server import serving

FOLDER = Path(__file__).parents[2] / "scripts" / "load"


@dataclass
class Response:
    """The part of Locust's response that the file uses."""

    inner: httpx.Response
    failures: list[str] = field(default_factory=list)

    @property
    def status_code(self) -> int:
        return self.inner.status_code

    @property
    def text(self) -> str:
        return self.inner.read().decode()

    def json(self) -> Any:
        return self.inner.json()

    def iter_lines(self, chunk_size: int | None) -> Iterator[bytes]:
        assert chunk_size is None, "any other size waits for that many bytes"
        yield from (line.encode() for line in self.inner.iter_lines())

    def failure(self, text: str) -> None:
        self.failures.append(text)


class Client:
    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self.failures: list[str] = []

    def get(self, path: str) -> Response:
        return Response(self._client.get(path))

    @contextmanager
    def post(self, path: str, json: Any, stream: bool, catch_response: bool) -> Iterator[Response]:
        assert stream
        assert catch_response
        with self._client.stream("POST", path, json=json) as inner:
            yield Response(inner, self.failures)


@dataclass
class Fired:
    rows: list[dict[str, Any]] = field(default_factory=list)

    def fire(self, **row: Any) -> None:
        self.rows.append(row)


@pytest.fixture
def user_class(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    locust = ModuleType("locust")
    locust.__dict__.update(HttpUser=type("HttpUser", (), {}), between=lambda low, high: None, task=lambda function: function)
    monkeypatch.setitem(sys.modules, "locust", locust)
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    import locustfile

    mix = (Workload("short", (4, 8), (8, 8)), Workload("chat", (4, 8), (8, 8), turns=3))
    monkeypatch.setitem(locustfile.MIXES, "mixed", mix)
    yield locustfile.StreamingUser
    del sys.modules["locustfile"]


def user_at(client: httpx.Client, user_class: Any) -> Any:
    user = user_class()
    user.client = Client(client)
    user.environment = SimpleNamespace(events=SimpleNamespace(request=Fired()))
    user.on_start()
    user._random = Random(1)
    return user


def test_sessions_report_first_token_and_gaps(user_class: Any) -> None:
    with serving() as server:
        user = user_at(server.client, user_class)
        for _ in range(6):
            user.session()
        sent = server.client.get("/metrics").text
    rows = user.environment.events.request.rows
    names = [row["name"] for row in rows]
    answers = names.count("end to end")
    assert user.client.failures == []
    assert 6 < answers < 18, "both kinds of session"
    assert names.count("TTFT") == answers
    assert answers < names.count("ITL") <= 7 * answers, "a slow reader gets several tokens in an event"
    assert all(row["response_time"] > 0 and row["request_type"] == "SSE" for row in rows)
    assert f'request_success_total{{finished_reason="length",model_name="test/echo"}} {answers}.0' in sent


@pytest.mark.parametrize(
    ("status", "body", "complaint"),
    [
        (429, "full", "refused (429)"),
        (500, "broken", "HTTP 500: broken"),
        (200, 'data: {"choices": []}\n\n', "the stream ended without [DONE]"),
    ],
)
def test_what_fails_is_a_failure_in_locust(user_class: Any, status: int, body: str, complaint: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, text=body) if request.method == "POST" else httpx.Response(200, json={"data": [{"id": "m"}]})

    with httpx.Client(base_url="http://server", transport=httpx.MockTransport(answer)) as client:
        user = user_at(client, user_class)
        user.session()
    (failure,) = user.client.failures
    assert failure.startswith(complaint)
    assert user.environment.events.request.rows == []
