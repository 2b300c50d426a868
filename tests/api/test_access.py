"""Keys: which routes are open without one, which are not, and that a refusal costs the server nothing."""

import logging
import socket
from collections.abc import Iterator

import httpx
import openai
import pytest
from api_server import TestServer, running

from inference_server.api.access import KeyRing

KEYS = ("first-key", "second-key")
OPEN = ("/health", "/health/live", "/health/ready", "/ready", "/", "/metrics")


@pytest.fixture(scope="module")
def guarded() -> Iterator[TestServer]:
    with running(api_keys=KEYS) as server:
        yield server


def bearer(key: str, scheme: str = "Bearer") -> dict[str, str]:
    return {"Authorization": f"{scheme} {key}"}


def test_every_route_is_closed_unless_it_is_listed(guarded: TestServer) -> None:
    routes = httpx.get(guarded.url, headers=bearer(KEYS[0]), trust_env=False).json()["routes"]
    for method, path in (route.split() for route in routes):
        status = guarded.client.request(method, path).status_code
        assert (status == 200) if path in OPEN else (status == 401), (method, path)
    for path in ("/openapi.json", "/requests", "/simulate/status", "/dashboard/state", "/no/such/route", "//health", "/health/", "/static"):
        assert httpx.get(f"{guarded.url}{path}", trust_env=False).status_code == 401, path
    assert guarded.client.options("/generate").status_code == 401


@pytest.mark.parametrize(
    "headers", [{}, bearer("wrong"), {"Authorization": "Bearer"}, bearer("first-key", "Basic"), bearer("first-key,second-key")]
)
def test_a_refusal_has_the_error_shape_and_names_the_scheme(guarded: TestServer, headers: dict[str, str]) -> None:
    refused = guarded.client.post("/generate", content=b"not even JSON", headers=headers)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert refused.headers["x-request-id"]
    assert refused.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_any_of_the_keys_opens(guarded: TestServer, key: str, scheme: str) -> None:
    answer = guarded.client.post("/generate", json={"text": "hi"}, headers=bearer(key, scheme))
    assert answer.json()["text"] == "hi"


def test_a_refusal_does_not_wait_for_the_body(guarded: TestServer) -> None:
    host, port = guarded.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
        assert connection.recv(1000).startswith(b"HTTP/1.1 401 ")


def test_the_openai_client_gets_its_authentication_error(guarded: TestServer) -> None:
    client = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        client.models.list()
    assert client.with_options(api_key=KEYS[0]).models.list().data


def test_a_key_is_one_client_of_the_fair_policy(guarded: TestServer) -> None:
    guarded.client.post("/generate", json={"text": "hi", "session_id": "mine"}, headers=bearer(KEYS[0]))
    fairness = guarded.client.get("/scheduler/stats", headers=bearer(KEYS[0])).json()["fairness"]
    assert all(entry["key"].startswith("key:") and "@" not in entry["key"] for entry in fairness)


def test_metrics_go_by_their_own_key() -> None:
    with running(api_keys=KEYS, metrics_key="scraper") as server:
        assert server.client.get("/metrics").status_code == 401
        assert server.client.get("/metrics", headers=bearer(KEYS[0])).status_code == 401
        assert server.client.get("/metrics", headers=bearer("scraper")).status_code == 200
        assert server.client.get("/version", headers=bearer("scraper")).status_code == 401
    with running(metrics_key="scraper") as server:
        assert server.client.get("/metrics").status_code == 401
        assert server.client.get("/version").status_code == 200


def test_a_browser_may_read_the_refusal_from_an_origin_that_is_allowed_and_from_no_other() -> None:
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    with running(api_keys=KEYS, cors_origins=("http://app",)) as server:
        assert server.client.options("/generate", headers={"Origin": "http://app", **preflight}).status_code == 200
        refused = server.client.post("/generate", headers={"Origin": "http://app"})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "http://app")
        assert "access-control-allow-origin" not in server.client.get("/health", headers={"Origin": "http://evil"}).headers


def test_without_keys_nothing_is_asked_and_no_origin_is_allowed(server: TestServer) -> None:
    answer = server.client.get("/version", headers={"Origin": "http://evil", **bearer("whatever")})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


def test_neither_keys_nor_prompts_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with running(api_keys=KEYS, log_level="debug") as server:
        assert server.client.post("/generate", json={"text": "hush"}, headers=bearer(KEYS[0])).status_code == 200
        assert server.client.post("/generate", json={"text": "hush", "max_tokens": "hush"}, headers=bearer(KEYS[0])).status_code == 400
        assert server.client.post("/generate", json={"text": "hush"}, headers=bearer("wrong-key")).status_code == 401
    ours = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    text = "".join(logging.Formatter().format(record) for record in ours)
    assert not any(secret in text for secret in ("first-key", "wrong-key", "hush"))


def test_a_ring_knows_its_keys_alone() -> None:
    ring = KeyRing(KEYS)
    assert all(key.encode() in ring for key in KEYS)
    assert not any(token in ring for token in (b"", b"first-ke", b"first-key ", b"FIRST-KEY", b"\xff\xfe"))
    assert ring and not KeyRing(())
