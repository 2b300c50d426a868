"""What a full, loading, draining or dead server answers, and how fast it says that it is alive."""

import asyncio
import time
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

import httpx
import pytest
from api_server import running
from echo_model import EchoBackend, load_echo
from wire import parse_sse

from inference_server.config import Settings
from inference_server.engine.loaded_model import LoadedModel

BODIES = {"/generate": {"text": "hi"}, "/v1/completions": {"prompt": "hi"}, "/v1/chat/completions": {"messages": []}}


def refused(answer: httpx.Response, status: int, code: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"] == code
    assert int(answer.headers["retry-after"]) >= 1


def test_a_full_queue_is_429_before_the_body_is_read() -> None:
    backend = EchoBackend(step_s=0.02)
    with running(backend, max_batch_size=1, max_batched_tokens=64, max_queue_size=2) as server, ThreadPoolExecutor(3) as pool:

        def send(**fields: Any) -> Future[httpx.Response]:
            return pool.submit(httpx.post, f"{server.url}/generate", json={"text": "hi", **fields}, timeout=20, trust_env=False)

        waiting = [send(ignore_eos=True, max_tokens=100)]
        server.wait_for(lambda stats: stats["active_rows"] == 1)
        waiting += [send(), send()]
        server.wait_for(lambda stats: stats["queue_depth"] == 2)
        refused(server.client.get("/ready"), 503, "not_ready")
        for path in BODIES:
            refused(server.client.post(path, content=b"not even JSON"), 429, "overloaded")
        assert server.client.get("/health").status_code == 200
        assert server.stats()["rejected_total"] == 3
        backend.step_s = 0.0
        assert [future.result().json()["text"] for future in waiting] == ["hi" * 50, "hi", "hi"]
        assert server.client.post("/generate", json={"text": "hi"}).status_code == 200
        server.wait_until_free()


@pytest.mark.parametrize("stream", [False, True])
def test_a_wait_beyond_the_admission_deadline_is_429(stream: bool) -> None:
    backend = EchoBackend(step_s=0.02)
    with running(backend, max_batch_size=1, max_batched_tokens=64, admission_deadline_s=0.2) as server, ThreadPoolExecutor(1) as pool:
        long = {"text": "hi", "ignore_eos": True, "max_tokens": 50}
        first = pool.submit(httpx.post, f"{server.url}/generate", json=long, timeout=20, trust_env=False)
        server.wait_for(lambda stats: stats["active_rows"] == 1)
        refused(server.client.post("/generate", json={"text": "late", "stream": stream}), 429, "overloaded")
        assert first.result().json()["tokens_generated"] == 50


def test_the_port_is_open_while_the_model_loads() -> None:
    go_on = Event()

    def load() -> LoadedModel:
        assert go_on.wait(20)
        return load_echo(Settings(_env_file=None), EchoBackend())  # type: ignore[call-arg]

    with running(load=load) as server:
        health = server.client.get("/health")
        assert (health.status_code, health.json()) == (200, {"status": "loading", "last_step_age_s": None})
        refused(server.client.get("/ready"), 503, "not_ready")
        for path, body in BODIES.items():
            refused(server.client.post(path, json=body), 503, "not_ready")
        refused(server.client.post("/tokenize", json={"prompt": "a"}), 503, "not_ready")
        assert server.client.get("/v1/models").json()["data"][0]["max_model_len"] is None
        assert server.client.get("/metrics").status_code == 200
        go_on.set()
        server.wait_for(lambda _: server.client.get("/ready").status_code == 200)
        assert server.client.post("/generate", json={"text": "hi"}).json()["text"] == "hi"


def test_a_draining_server_finishes_what_it_has() -> None:
    backend = EchoBackend(step_s=0.01)
    with running(backend) as server:
        with server.client.stream("POST", "/generate", json={"text": "x" * 50, "stream": True}) as answer:
            blocks = answer.iter_raw()
            raw = next(blocks)
            server.context.engine.begin_drain()
            with httpx.Client(base_url=server.url, trust_env=False) as other:
                refused(other.get("/ready"), 503, "not_ready")
                refused(other.post("/generate", json={"text": "a"}), 503, "not_ready")
                assert other.get("/health").json()["status"] == "draining"
            raw += b"".join(blocks)
        assert "".join(event["text"] for event in parse_sse(raw)) == "x" * 50


@pytest.mark.alone
def test_health_answers_quickly_while_32_requests_run() -> None:
    async def probe(url: str) -> list[float]:
        async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
            body = {"text": "some words ", "ignore_eos": True, "max_tokens": 400, "stream": True}
            running_requests = [asyncio.create_task(client.post("/generate", json=body)) for _ in range(32)]
            await asyncio.sleep(0.2)
            times = []
            while len(times) < 200:
                start = time.perf_counter()
                assert (await client.get("/health")).status_code == 200
                times.append(time.perf_counter() - start)
            assert not any(task.done() for task in running_requests)
            for task in running_requests:
                task.cancel()
            await asyncio.gather(*running_requests, return_exceptions=True)
            return times

    with running(EchoBackend(step_s=0.02)) as server:
        times = sorted(asyncio.run(probe(server.url)))
        assert times[197] < 0.05
        server.wait_until_free()
