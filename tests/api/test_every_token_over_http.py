"""The whole path over HTTP on `FakeBackend`: many clients at once, a pool too small for all of them, and every token is right."""

import asyncio
from collections.abc import Iterator
from threading import Event
from typing import Any

import httpx
import pytest
from api_server import TestServer, running
from echo_model import MODEL_NAME, TOKENIZER
from wire import parse_sse

from inference_server.backends.fake_backend import FakeBackend, FakeStep
from inference_server.config import Settings
from inference_server.core.kv_layout import KVLayout
from inference_server.core.model_spec import GenerationDefaults
from inference_server.core.options import SchedulerOptions
from inference_server.core.plan import StepPlan
from inference_server.engine.loaded_model import LoadedModel
from inference_server.kv_cache.block_pool import BlockPool
from inference_server.kv_cache.cache_manager import CacheManager
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler
from inference_server.tokenization.chat_template import ChatTemplate

NUM_TOKENS = 40


class GatedBackend(FakeBackend):
    """Runs no step before the gate is open."""

    gate = Event()

    def launch(self, plan: StepPlan) -> FakeStep:
        assert self.gate.wait(30)
        return super().launch(plan)


BACKEND = GatedBackend(supports_overlap=True)


def load() -> LoadedModel:
    spec = BACKEND.load()
    layout = KVLayout.from_num_blocks(spec.groups, block_size=4, num_blocks=80)
    BACKEND.allocate(layout)
    scheduler = ContinuousBatchScheduler(CacheManager(BlockPool(layout)), SchedulerOptions(max_batch_size=16, prefill_chunk_size=8))
    template = ChatTemplate.plain(TOKENIZER)
    return LoadedModel(BACKEND, scheduler, TOKENIZER, template, spec, GenerationDefaults(), spec.max_model_len)


@pytest.fixture(scope="module")
def fake_server() -> Iterator[TestServer]:
    assert Settings(_env_file=None).max_queue_size >= 32  # type: ignore[call-arg]
    with running(load=load) as server:
        server.wait_for(lambda _: server.client.get("/ready").status_code == 200, limit_s=10)
        yield server


def test_thirty_two_clients_get_the_right_tokens(fake_server: TestServer) -> None:
    prompts = [f"client {i}: {'word ' * (i % 7)}" for i in range(32)]

    async def ask(client: httpx.AsyncClient, i: int, prompt: str) -> str:
        body: dict[str, Any] = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": NUM_TOKENS, "stream": i % 2 == 0}
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        chunks = parse_sse(answer.content) if i % 2 == 0 else [answer.json()]
        return "".join(chunk["choices"][0]["text"] for chunk in chunks)

    async def run() -> list[str]:
        async with httpx.AsyncClient(base_url=fake_server.url, timeout=30, trust_env=False) as client:
            answers = asyncio.gather(*(ask(client, i, prompt) for i, prompt in enumerate(prompts)))
            while fake_server.context.engine.num_open < len(prompts):
                await asyncio.sleep(0.01)
            BACKEND.gate.set()
            return await answers

    texts = asyncio.run(run())
    assert texts == [TOKENIZER.decode(BACKEND.expected_tokens(TOKENIZER.encode(prompt), NUM_TOKENS)) for prompt in prompts]
    assert fake_server.stats()["preemptions_total"] > 0
    fake_server.wait_until_free()
