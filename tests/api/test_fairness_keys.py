"""Which fairness key a request counts for, from the headers and the body to the statistics."""

import pytest
from api_server import TestServer
from fastapi import Request

from inference_server.api.fairness import fairness_key


def key_of(session: str = "", authorization: str | None = None, address: str = "10.0.0.1", **state: str) -> str:
    headers = [] if authorization is None else [(b"authorization", authorization.encode())]
    return fairness_key(Request({"type": "http", "headers": headers, "client": (address, 1234), "state": state}), session)


def test_the_api_key_comes_first_then_the_session_then_the_address() -> None:
    assert key_of() == "address:10.0.0.1"
    assert key_of(address="10.0.0.2") == "address:10.0.0.2"
    assert key_of("alice") == "session:alice" == key_of("alice", "Basic abc")
    assert key_of(authorization="Bearer secret").startswith("key:")


def test_a_new_session_for_every_request_gains_nothing_under_one_key() -> None:
    keys = {key_of(f"session {index}", "Bearer secret") for index in range(10)}
    assert len(keys) == 1
    assert keys != {key_of(authorization="Bearer another")}
    assert keys == {key_of(authorization="bearer secret ")}


def test_the_key_itself_is_not_shown() -> None:
    assert "secret" not in key_of(authorization="Bearer secret")


def test_a_placeholder_that_every_client_sends_does_not_make_them_one() -> None:
    assert key_of(authorization="Bearer none") != key_of(authorization="Bearer none", address="10.0.0.2")


def test_a_key_that_was_checked_is_one_client_wherever_it_comes_from() -> None:
    keys = {key_of("alice", "Bearer secret", address, client_key="key:1") for address in ("10.0.0.1", "10.0.0.2")}
    assert keys == {"key:1"}


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("/generate", {"text": "hi", "session_id": "carol"}, "session:carol"),
        ("/v1/completions", {"prompt": "hi", "user": "dave"}, "session:dave"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "user": "erin"}, "session:erin"),
        ("/v1/completions", {"prompt": "hi"}, "address:127.0.0.1"),
    ],
)
def test_statistics_show_what_a_client_has_had(server: TestServer, path: str, body: dict[str, object], key: str) -> None:
    before = {entry["key"]: entry["served"] for entry in server.stats()["fairness"]}
    assert server.client.post(path, json={"max_tokens": 2, **body}).status_code == 200
    server.wait_until_free()
    entry = next(entry for entry in server.stats()["fairness"] if entry["key"] == key)
    assert entry["served"] > before.get(key, 0)
    assert (entry["num_waiting"], entry["num_open"]) == (0, 0)
    assert len(server.stats()["fairness"]) <= 10
