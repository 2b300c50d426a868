"""The simulator over real HTTP, against the real application and an echo model."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from api_server import TestServer, running
from echo_model import EchoBackend
from fastapi import Request

from inference_server.api.routes.simulate import own_address

SHORT = {"short": 1, "medium": 0, "long": 0}
EAGER = {"weights": SHORT, "think_time_s": 0, "max_tokens": 8}


@pytest.fixture
def server() -> Iterator[TestServer]:
    with running(max_batch_size=4, max_queue_size=4) as server:
        yield server
        server.client.post("/simulate/stop")


def status(server: TestServer) -> dict[str, Any]:
    return server.client.get("/simulate/status").json()


def until(server: TestServer, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    server.wait_for(lambda _: condition(status(server)), limit_s=10)
    return status(server)


def test_users_get_their_answers_through_the_public_route(server: TestServer) -> None:
    started = server.client.post("/simulate/start", json={"num_users": 3, **EAGER})
    assert started.status_code == 200
    assert started.json()["running"]
    seen = until(server, lambda s: s["requests_completed"] >= 20)
    assert seen["requests_failed"] == seen["requests_rejected"] == 0
    assert seen["tokens_received"] >= 20 * 2
    assert 0 < seen["ttft_ms"]["p50"] <= seen["ttft_ms"]["p99"]
    assert set(seen["started_by_bucket"]) == {"short", "medium", "long"}
    keys = {row["key"] for row in server.stats()["fairness"]}
    assert keys == {f"session:sim-0-{user}" for user in range(3)}
    assert 'route="/generate"' in server.client.get("/metrics").text


def test_a_stop_cuts_off_what_is_running_and_frees_it(server: TestServer) -> None:
    server.backend.step_s = 0.02
    server.client.post("/simulate/start", json={"num_users": 4, **EAGER, "max_tokens": 512})
    server.wait_for(lambda s: s["active_rows"] > 0, limit_s=10)
    stopped = server.client.post("/simulate/stop").json()
    assert not stopped["running"]
    assert stopped["in_flight"] == 0
    server.wait_until_free()
    assert server.client.post("/simulate/stop").json() == stopped


def test_one_simulation_at_a_time(server: TestServer) -> None:
    server.client.post("/simulate/start", json={"num_users": 1, **EAGER})
    second = server.client.post("/simulate/start", json={})
    assert second.status_code == 409
    assert second.json()["error"]["code"] == "conflict"
    server.client.post("/simulate/stop")
    assert server.client.post("/simulate/start", json={"num_users": 1, **EAGER}).status_code == 200


def test_a_simulation_ends_by_itself(server: TestServer) -> None:
    server.client.post("/simulate/start", json={"num_users": 2, **EAGER, "duration_s": 0.2})
    seen = until(server, lambda s: not s["running"])
    assert 0.2 <= seen["elapsed_s"] < 5
    assert seen["in_flight"] == 0


def test_users_who_are_refused_try_again(server: TestServer) -> None:
    server.backend.gate.clear()  # four rows run, four wait, the other four users are refused
    server.client.post("/simulate/start", json={"num_users": 12, **EAGER})
    refused = until(server, lambda s: s["requests_rejected"] >= 4)
    assert refused["in_flight"] == 12
    server.backend.gate.set()
    seen = until(server, lambda s: s["requests_completed"] >= 24)
    assert seen["requests_failed"] == 0


def test_a_prompt_that_is_too_long_is_a_failure_and_not_the_end(server: TestServer) -> None:
    server.client.post("/simulate/start", json={"num_users": 1, **EAGER, "weights": {"short": 0, "medium": 0, "long": 1}})
    seen = until(server, lambda s: s["requests_failed"] >= 2)
    assert seen["last_error"].startswith("the prompt has ")
    assert seen["running"]


@pytest.mark.parametrize(
    "body",
    [
        {"num_users": 0},
        {"num_users": 257},
        {"weights": {"short": 0, "medium": 0, "long": 0}},
        {"weights": {"short": -1}},
        {"duration_s": 0},
        {"duration_s": 4000},
        {"think_time_s": -1},
        {"users": 3},
    ],
)
def test_what_is_out_of_bounds_is_refused_and_starts_nothing(server: TestServer, body: dict) -> None:
    assert server.client.post("/simulate/start", json=body).status_code == 400
    assert not status(server)["running"]


def test_a_server_without_a_simulator_says_how_to_get_one() -> None:
    with running(enable_simulator=False) as server:
        for method, path in (("POST", "/simulate/start"), ("POST", "/simulate/stop"), ("GET", "/simulate/status")):
            answer = server.client.request(method, path, json={} if path.endswith("start") else None)
            assert answer.status_code == 404
            assert "ENABLE_SIMULATOR" in answer.json()["error"]["message"]


def test_requests_go_to_the_socket_and_not_where_the_client_says() -> None:
    headers = [(b"host", b"elsewhere.example")]
    assert own_address(Request({"type": "http", "server": ("10.0.0.7", 8000), "headers": headers})) == "http://10.0.0.7:8000"
    assert own_address(Request({"type": "http", "server": ("::1", 8000), "headers": headers})) == "http://[::1]:8000"


def test_the_server_stops_under_a_simulation() -> None:
    with running(EchoBackend(step_s=0.01)) as server:
        server.client.post("/simulate/start", json={"num_users": 4, **EAGER, "max_tokens": 512})
        server.wait_for(lambda s: s["active_rows"] > 0, limit_s=10)
    # On leaving the block, the fixture has waited for the server's end and asserted it.
