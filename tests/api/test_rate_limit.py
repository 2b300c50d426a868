"""The token bucket on a virtual clock, and what clients see of it."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from api_server import Start

from inference_server.api.rate_limit import Buckets, Standing, TokenSpending
from inference_server.core.records import RequestRecord
from inference_server.core.request import FinishReason, RequestOrigin


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def take(buckets: Buckets, client: str) -> bool:
    if buckets.standing(client).wait_s:
        return False
    buckets.charge(client, 1)
    return True


def test_a_bucket_gives_a_minute_at_once_and_then_keeps_the_rate() -> None:
    clock = Clock()
    buckets = Buckets(30, clock)
    assert buckets.standing("a") == Standing(30, 0.0, 0.0)
    assert all(take(buckets, "a") for _ in range(30))
    assert buckets.standing("a") == Standing(0, 60.0, 2.0)
    clock.now += 1.99
    assert not take(buckets, "a")
    clock.now += 0.02
    assert take(buckets, "a")
    assert not take(buckets, "a")
    assert take(buckets, "b")


@pytest.mark.parametrize("pause_s", [0.1, 0.7, 2.5, 61.0])
def test_no_client_gets_more_than_its_rate_over_time(pause_s: float) -> None:
    clock = Clock()
    buckets = Buckets(60, clock)
    num_allowed = 0
    while clock.now < 1600:
        num_allowed += take(buckets, "a")
        clock.now += pause_s
    assert num_allowed <= 60 + 600 + 1
    assert num_allowed >= min(600 / pause_s, 600) - 1


def test_clients_of_long_ago_are_forgotten_and_debts_are_not() -> None:
    clock = Clock()
    buckets = Buckets(2, clock)
    for index in range(1000):
        buckets.charge(str(index), 1)
        clock.now += 1
    assert len(buckets) <= 61
    buckets.charge("debtor", 10)
    clock.now += 100
    assert buckets.standing("debtor").wait_s == pytest.approx(170)
    buckets.charge("another", 1)
    assert buckets.standing("debtor").wait_s == pytest.approx(170)
    clock.now += 1000
    buckets.charge("another", 1)
    assert len(buckets) == 1


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def ask(client: httpx.Client, key: str, **fields: object) -> tuple[int, str, str | None]:
    answer = client.post("/generate", json={"text": "hi", **fields}, headers=bearer(key))
    return answer.status_code, answer.headers["x-ratelimit-remaining-requests"], answer.headers.get("retry-after")


def test_each_key_has_its_own_allowance_and_is_told_about_it(start: Start) -> None:
    with start(api_keys=("a", "b"), rate_limit_rpm=3) as client:
        assert [ask(client, "a", stream=stream)[:2] for stream in (False, True, False)] == [(200, "2"), (200, "1"), (200, "0")]
        status, remaining, retry_after = ask(client, "a")
        assert (status, remaining) == (429, "0")
        assert retry_after is not None and 15 <= int(retry_after) <= 20
        refused = client.post("/v1/completions", content=b"not even JSON", headers=bearer("a"))
        assert refused.json()["error"] | {"message": ""} == {
            "message": "",
            "type": "rate_limit_error",
            "param": None,
            "code": "rate_limit_exceeded",
        }
        assert refused.headers["x-ratelimit-limit-requests"] == "3"
        assert 50 < float(refused.headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 60
        assert ask(client, "b")[0] == 200
        assert client.get("/v1/models", headers=bearer("a")).status_code == 200
        assert client.post("/generate", headers=bearer("wrong")).status_code == 401


def test_without_keys_an_address_is_a_client_whatever_key_it_makes_up(start: Start) -> None:
    with start(rate_limit_rpm=4) as client, ThreadPoolExecutor(4) as pool:
        statuses = list(pool.map(lambda index: ask(client, f"key {index}")[0], range(8)))
        assert sorted(statuses) == [200] * 4 + [429] * 4


def test_tokens_are_made_up_for_once_they_are_known(start: Start) -> None:
    with start(api_keys=("a", "b"), rate_limit_tpm=100) as client:
        asked = {"text": "x" * 149, "max_tokens": 50}
        first = client.post("/generate", json=asked, headers=bearer("a"))
        assert (first.status_code, first.headers["x-ratelimit-remaining-tokens"]) == (200, "100")
        assert "x-ratelimit-limit-requests" not in first.headers
        refused = client.post("/generate", json=asked, headers=bearer("a"))
        assert (refused.status_code, refused.headers["x-ratelimit-remaining-tokens"]) == (429, "0")
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 55 <= int(refused.headers["retry-after"]) <= 61  # 150 of the prompt and 50 of the answer: 100 too many
        assert client.post("/generate", json=asked, headers=bearer("b")).status_code == 200


def record(key: str, admitted_time: float | None, prompt: int, cached: int, output: int) -> RequestRecord:
    origin = RequestOrigin(fairness_key=key)
    return RequestRecord("id", origin, FinishReason.STOP, None, prompt, cached, output, 0, 1.0, admitted_time, None, 2.0)


def test_only_what_was_computed_is_spent_and_it_is_taken_once() -> None:
    spending = TokenSpending()
    spending.on_request(record("a", 1.0, prompt=100, cached=96, output=10))
    spending.on_request(record("b", None, prompt=100, cached=0, output=0))
    spending.on_request(record("c", 1.0, prompt=7, cached=0, output=1))
    assert spending.take() == [("a", 14), ("c", 8)]
    assert spending.take() == []
