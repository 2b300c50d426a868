"""A fleet of three replicas on Ray, from outside: routes, refusals, deaths, conversations and throughput. Opt in with -m fleet."""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("ray")

from fake_fleet import SETTINGS, URL, client, deploy, replica_pids, stats, stream, until
from fleet_sessions import Cached, converse
from openai import OpenAI
from ray import serve
from ray.exceptions import RayActorError

from control_plane.deployment import answered

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

REPLICAS = 3


@pytest.fixture(scope="module", autouse=True)
def fleet(ray_cluster: str) -> Iterator[None]:
    deploy("fleet", "/", REPLICAS)
    yield
    serve.delete("fleet")


def say(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """Print a figure that the run is meant to show."""
    with capsys.disabled():
        sys.stdout.write(f"\n{text}\n")


def test_a_replica_that_died_is_left_out_and_one_that_failed_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    assert answered([{"tokens": 1}, RayActorError()]) == [{"tokens": 1}]
    assert not caplog.records
    assert answered([ValueError("broken"), {"tokens": 2}]) == [{"tokens": 2}]
    assert "broken" in caplog.text


def test_the_openai_client_is_served() -> None:
    openai = OpenAI(base_url=f"{URL}/v1", api_key="none")
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    assert [model.id for model in openai.models.list()] == ["fake"]
    whole = openai.chat.completions.create(model="fake", messages=messages, max_tokens=8)
    chunks = openai.chat.completions.create(model="fake", messages=messages, max_tokens=8, stream=True)
    text = whole.choices[0].message.content
    assert text
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert openai.completions.create(model="fake", prompt=["a", "b"], n=2, max_tokens=4).usage.completion_tokens == 16  # type: ignore[union-attr]
    response = openai.responses.create(model="fake", input="hello", max_output_tokens=8)
    events = list(openai.responses.create(model="fake", input="hello", max_output_tokens=8, stream=True))
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.output_text == response.output_text


def test_every_other_route_passes_and_ids_come_back() -> None:
    async def scenario() -> None:
        async with client() as http:
            for path in ("/health", "/ready", "/version", "/scheduler/stats", "/cache/stats", "/metrics", "/requests", "/"):
                assert (await http.get(path)).status_code == 200, path
            assert (await http.post("/tokenize", json={"prompt": "abc"})).json()["count"] == 4
            metrics = (await http.get("/fleet/metrics")).text
            assert "inference_server_fleet_replicas 3.0" in metrics
            page = await http.get("/fleet")
            assert 'id="replicas"' in page.text
            assert "default-src 'self'" in page.headers["content-security-policy"]
            assert metrics.count("inference_server_fleet_replica_kv_pressure{") == REPLICAS
            assert (await http.get("/nowhere")).json()["error"]["code"] == "not_found"
            bad = await http.post("/generate", json={"text": 5}, headers={"X-Request-Id": "my-own"})
            assert (bad.status_code, bad.headers["x-request-id"]) == (400, "my-own")
            assert (await http.post("/generate", content=b"x" * (5 << 20))).status_code == 413

    asyncio.run(scenario())


def test_a_client_that_leaves_frees_its_row() -> None:
    async def idle(http: Any) -> bool:
        return all(replica["tokens"] == 0 for replica in await stats(http))

    async def scenario() -> None:
        async with client() as http:
            body = {"text": "a" * 100, "max_tokens": 10_000, "ignore_eos": True, "stream": True}
            async with http.stream("POST", "/generate", json=body) as answer:
                lines = answer.aiter_lines()
                await anext(lines)
                assert not await idle(http)
            await until(lambda: idle(http), limit_s=20)

    asyncio.run(scenario())


def test_a_replicas_refusal_passes_with_its_retry_after() -> None:
    async def scenario() -> None:
        async with client() as http:
            body = {"messages": [{"role": "user", "content": "a"}], "n": SETTINGS["max_queue_size"], "max_tokens": 60}
            answers = await asyncio.gather(*(http.post("/v1/chat/completions", json=body) for _ in range(20)))
            refused = [answer for answer in answers if answer.status_code == 429]
            assert {answer.status_code for answer in answers} == {200, 429}
            assert refused
            for answer in refused:
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.json()["error"]["code"] == "overloaded"

    asyncio.run(scenario())


def test_conversations_keep_what_one_box_would_have_cached(capsys: pytest.CaptureFixture[str]) -> None:
    async def ask(prefix: str) -> Cached:
        async with client() as http:
            return await converse(http, prefix)

    own = asyncio.run(ask(""))
    deploy("turns", "/turns", REPLICAS, policy="round_robin")
    turns = asyncio.run(ask("/turns"))
    serve.delete("turns")
    say(capsys, f"{own}; by round robin {turns.hits / turns.prompts:.1%}")
    assert own.hits >= 0.9 * own.possible
    assert turns.hits < 0.9 * own.hits


def test_three_replicas_do_three_times_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    """Answers do not stream here: streams through Ray cost processor time that a small machine does not have."""
    deploy("one", "/one", 1)

    async def rate(prefix: str, concurrent: int) -> float:
        async with client() as http:
            bodies = [{"text": f"{index:04}" * 8, "max_tokens": 150, "ignore_eos": True} for index in range(concurrent)]
            began = time.monotonic()
            answers = await asyncio.gather(*(http.post(f"{prefix}/generate", json=body) for body in bodies))
            assert all(answer.status_code == 200 for answer in answers)
            return 150 * concurrent / (time.monotonic() - began)

    one, three = (asyncio.run(rate(*load)) for load in (("/one", 8), ("", 8 * REPLICAS)))
    say(capsys, f"one replica {one:.0f} tokens/s, three {three:.0f}: {three / one:.2f} times")
    serve.delete("one")
    assert three >= 0.9 * REPLICAS * one


def test_replicas_come_with_the_load_and_go_with_it() -> None:
    deploy("scaled", "/scaled", 1, max_replicas=2, target_queue_s=0.2, scale_up_s=1.0, scale_down_s=2.0)

    async def number(http: Any, wanted: int) -> bool:
        return len(await stats(http, "/scaled")) == wanted

    async def ask(http: Any, ended: asyncio.Event) -> None:
        while not ended.is_set():
            answer = await http.post("/scaled/generate", json={"text": "a" * 64, "max_tokens": 50, "ignore_eos": True})
            assert answer.status_code in (200, 429), answer.text

    async def scenario() -> None:
        async with client() as http:
            ended = asyncio.Event()
            users = [asyncio.create_task(ask(http, ended)) for _ in range(28)]
            await until(lambda: number(http, 2))
            ended.set()
            await asyncio.gather(*users)
            await until(lambda: number(http, 1))

    asyncio.run(scenario())
    serve.delete("scaled")


def test_a_replica_dies_under_50_streams_and_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        async with client() as http:
            before = {replica["replica"] for replica in await stats(http)}
            started: Counter[str] = Counter()
            body = {"max_tokens": 200, "ignore_eos": True}
            first = [asyncio.create_task(stream(http, {**body, "text": f"{index:04}" * 20}, started)) for index in range(25)]

            async def all_started() -> bool:
                return started["streams"] == 25

            await until(all_started)
            second = [asyncio.create_task(stream(http, {"max_tokens": 20, "text": f"{index:04}" * 20})) for index in range(25, 50)]
            await asyncio.sleep(0)  # so that the requests are on their way
            os.kill(replica_pids("fleet")[0], signal.SIGKILL)
            streams = await asyncio.gather(*first, *second)
            assert all(one.status == 200 and one.done for one in streams)
            assert all(one.finished != bool(one.errors) and one.errors <= 1 for one in streams)
            assert all("text" in one.events[0] for one in streams), "a request without a token failed"
            failed = [one for one in streams if one.errors]
            assert 0 < len(failed) <= 25
            say(capsys, f"of 50 streams {len(failed)} had a token and were broken off; {(await http.get('/fleet/stats')).text}")

            async def back() -> bool:
                return len({replica["replica"] for replica in await stats(http)}) == REPLICAS

            await until(back)
            (born,) = {replica["replica"] for replica in await stats(http)} - before

            async def used() -> bool:
                await asyncio.gather(*(http.post("/generate", json={"text": f"new {i}", "max_tokens": 4}) for i in range(12)))
                return any(replica["replica"] == born and replica["miss_tokens"] for replica in await stats(http))

            await until(used)

    asyncio.run(scenario())


def test_an_update_of_the_fleet_fails_no_request() -> None:
    async def user(http: Any, ended: asyncio.Event) -> list[int]:
        statuses = []
        while not ended.is_set():
            statuses.append((await http.post("/generate", json={"text": "a" * 40, "max_tokens": 20})).status_code)
            answer = await stream(http, {"text": "b" * 40, "max_tokens": 20})
            statuses.append(answer.status if answer.finished and not answer.errors else 0)
        return statuses

    async def scenario() -> None:
        async with client() as http:
            before = {replica["replica"] for replica in await stats(http)}
            ended = asyncio.Event()
            users = [asyncio.create_task(user(http, ended)) for _ in range(4)]
            await asyncio.to_thread(deploy, "fleet", "/", REPLICAS)
            ended.set()
            statuses = Counter(status for answers in await asyncio.gather(*users) for status in answers)
            assert before.isdisjoint({replica["replica"] for replica in await stats(http)})
            assert set(statuses) == {200}, statuses

    asyncio.run(scenario())
