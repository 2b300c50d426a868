"""The token bucket on a virtual clock, and what clients see of it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from api_server import TestServer, running

from inference_server.api.rate_limit import RateLimiter


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_gives_a_minute_at_once_and_then_keeps_the_rate() -> None:
    clock = Clock()
    limiter = RateLimiter(30, clock)
    assert [limiter.take("a").remaining for _ in range(30)] == list(range(29, -1, -1))
    refused = limiter.take("a")
    assert (refused.allowed, refused.remaining, refused.wait_s, refused.reset_s) == (False, 0, 2.0, 60.0)
    clock.now += 1.99
    assert not limiter.take("a").allowed
    clock.now += 0.02
    assert limiter.take("a").allowed
    assert not limiter.take("a").allowed
    assert limiter.take("b").allowed


@pytest.mark.parametrize("pause_s", [0.1, 0.7, 2.5, 61.0])
def test_no_client_gets_more_than_its_rate_over_time(pause_s: float) -> None:
    clock = Clock()
    limiter = RateLimiter(60, clock)
    num_allowed = 0
    while clock.now < 1600:
        num_allowed += limiter.take("a").allowed
        clock.now += pause_s
    assert num_allowed <= 60 + 600 + 1
    assert num_allowed >= min(600 / pause_s, 600) - 1


def test_clients_of_long_ago_are_forgotten_and_the_one_that_asks_is_not() -> None:
    clock = Clock()
    limiter = RateLimiter(2, clock)
    for index in range(1000):
        limiter.take(str(index))
        clock.now += 1
    assert len(limiter) <= 61
    clock.now += 1000
    assert [limiter.take("0").allowed for _ in range(3)] == [True, True, False]
    assert len(limiter) == 1


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def ask(server: TestServer, key: str, **fields: object) -> tuple[int, str, str | None]:
    answer = server.client.post("/generate", json={"text": "hi", **fields}, headers=bearer(key))
    return answer.status_code, answer.headers["x-ratelimit-remaining-requests"], answer.headers.get("retry-after")


def test_each_key_has_its_own_allowance_and_is_told_about_it() -> None:
    with running(api_keys=("a", "b"), rate_limit_rpm=3) as server:
        assert [ask(server, "a", stream=stream)[:2] for stream in (False, True, False)] == [(200, "2"), (200, "1"), (200, "0")]
        status, remaining, retry_after = ask(server, "a")
        assert (status, remaining) == (429, "0")
        assert retry_after is not None and 15 <= int(retry_after) <= 20
        refused = server.client.post("/v1/completions", content=b"not even JSON", headers=bearer("a"))
        assert refused.json()["error"] | {"message": ""} == {
            "message": "",
            "type": "rate_limit_error",
            "param": None,
            "code": "rate_limit_exceeded",
        }
        assert refused.headers["x-ratelimit-limit-requests"] == "3"
        assert 50 < float(refused.headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 60
        assert ask(server, "b")[0] == 200
        assert server.client.get("/v1/models", headers=bearer("a")).status_code == 200
        assert server.client.post("/generate", headers=bearer("wrong")).status_code == 401


def test_without_keys_an_address_is_a_client_whatever_key_it_makes_up() -> None:
    with running(rate_limit_rpm=4) as server, ThreadPoolExecutor(4) as pool:
        statuses = list(pool.map(lambda index: ask(server, f"key {index}")[0], range(8)))
        assert sorted(statuses) == [200] * 4 + [429] * 4
