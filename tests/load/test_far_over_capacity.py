"""Far above capacity: refusals are cheap and quick, and those who are let in are served as if nobody else had come."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from api_server import running
from echo_model import EchoBackend
from load_server import serving
from overload import offer, quantile
from timed_protocol import timing

RATE, SECONDS = 250.0, 2.0
STEP_S = 0.01
BATCH, QUEUE, TOKENS = 4, 8, 20
BODY = {"text": "hi", "max_tokens": TOKENS, "ignore_eos": True}


@pytest.mark.alone
def test_250_requests_a_second() -> None:
    http, refusals = timing()
    with serving(STEP_S, http, max_batch_size=BATCH, max_queue_size=QUEUE, max_batched_tokens=64) as server:
        alone = [httpx.post(f"{server.url}/generate", json=BODY, trust_env=False).json()["total_ms"] / 1000 for _ in range(3)]
        outcomes = asyncio.run(offer(server.url, RATE, SECONDS, BODY))
        refused = [outcome.seconds for outcome in outcomes if outcome.status == 429]
        answered = [outcome for outcome in outcomes if outcome.status == 200]
        assert len(refused) + len(answered) == len(outcomes)
        assert len(refused) > len(outcomes) / 2
        assert quantile(refused, 0.99) < 0.1
        assert len(refusals) == len(refused)
        assert quantile(refusals, 0.99) < 0.02
        # Whoever is let in finds at most the queue before it, and the batch runs at the pace of one row.
        assert max(outcome.seconds for outcome in answered) < 1.5 * (QUEUE / BATCH + 2) * max(alone)
        first = [outcome.seconds for outcome in answered if SECONDS / 4 < outcome.sent < SECONDS * 5 / 8]
        second = [outcome.seconds for outcome in answered if outcome.sent >= SECONDS * 5 / 8]
        assert quantile(second, 0.5) < 1.5 * quantile(first, 0.5)


def test_a_refusal_costs_half_a_millisecond_of_the_event_loop() -> None:
    """The body is never looked at: one that is no JSON is refused in the same way."""
    backend = EchoBackend()
    with running(backend, max_batch_size=1, max_queue_size=1, max_batched_tokens=64) as server, ThreadPoolExecutor(1) as pool:
        backend.gate.clear()  # a step that does not end: nothing but refusals runs on the loop
        pool.submit(httpx.post, f"{server.url}/generate", json=BODY, timeout=20, trust_env=False)
        server.wait_for(lambda _: server.context.engine.num_open == 1)
        assert server.loop_thread.ident is not None
        clock = time.pthread_getcpuclockid(server.loop_thread.ident)
        before = time.clock_gettime(clock)
        answers = [server.client.post("/generate", content=b"{", headers={"Content-Type": "application/json"}) for _ in range(300)]
        spent = time.clock_gettime(clock) - before
        backend.gate.set()
    assert {answer.status_code for answer in answers} == {429}
    assert spent / len(answers) < 0.0005
