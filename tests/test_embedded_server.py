"""The product as its users meet it: `python -m inference_server` without settings, the real weights, curl's and OpenAI's clients."""

import asyncio
import json
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam
from pydantic import BaseModel
from server_process import serving
from wire import streamed, whole
from wire_prompts import requests

pytestmark = pytest.mark.heavy
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("home"), KV_CACHE_NUM_BLOCKS="512") as (address, _):
        yield address


def test_generate_streams_paris(url: str) -> None:
    with httpx.stream("POST", f"{url}/generate", json={"text": QUESTION, "stream": True}, timeout=120, trust_env=False) as answer:
        payloads = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert payloads.pop() == "[DONE]"
    events = [json.loads(payload) for payload in payloads]
    assert "Paris" in "".join(event["text"] for event in events)
    assert events[-1]["finish_reason"] == "stop"


class Place(BaseModel):
    city: str
    country: str
    population: int
    sights: list[str]


def test_answers_are_parsed_into_a_model_and_calls_are_forced(url: str) -> None:
    tool = openai.pydantic_function_tool(Place, name="add_place")
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        messages: list[Any] = [{"role": "user", "content": f"{QUESTION} Describe it as JSON."}]
        completion = client.chat.completions.parse(model="embedded", messages=messages, response_format=Place, max_tokens=120)
        called = client.chat.completions.parse(
            model="embedded", messages=messages, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=120
        )
    place = completion.choices[0].message.parsed
    assert place is not None
    assert completion.choices[0].finish_reason == "stop"
    assert "Paris" in place.city
    (call,) = called.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Place)


def test_the_openai_client_works(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        whole = client.chat.completions.create(model="embedded", messages=[{"role": "user", "content": QUESTION}])
        stream = client.chat.completions.create(model="embedded", messages=[{"role": "user", "content": QUESTION}], stream=True)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert whole.choices[0].message.content == streamed
    assert "Paris" in streamed


def test_the_openai_client_works_side_by_side(url: str) -> None:
    async def ask(client: openai.AsyncOpenAI, place: str) -> bool:
        question: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": f"What is the capital of {place}?"}]
        chunks = await client.chat.completions.create(model="embedded", messages=question, stream=True, max_tokens=24)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks]) != ""

    async def scenario() -> list[bool]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
            return await asyncio.gather(*(ask(client, place) for place in ("France", "Italy", "Japan", "Peru")))

    assert all(asyncio.run(scenario()))


def test_the_openai_client_gets_responses_whole_streamed_and_parsed(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        answer = client.responses.create(model="embedded", input=QUESTION, max_output_tokens=24)
        with client.responses.stream(model="embedded", input=QUESTION, max_output_tokens=24) as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
            final = stream.get_final_response()
        parsed = client.responses.parse(
            model="embedded", input=f"{QUESTION} Describe it as JSON.", text_format=Place, max_output_tokens=120
        )
    assert "Paris" in answer.output_text
    assert answer.output_text == final.output_text == "".join(deltas)
    assert isinstance(parsed.output_parsed, Place)


def test_streams_say_what_whole_answers_say(url: str) -> None:
    """They run one after the other, and none from the cache: in bfloat16 another shape rounds differently."""
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
        for path, body in requests(Random(3), 16, max_tokens=16):
            stream, answer = streamed(client, path, body), whole(client, path, body | {"cache_salt": "another"})
            assert stream.choices == answer.choices
            assert stream.counts in (answer.counts, None)


@pytest.mark.alone
def test_health_answers_within_50_ms_while_32_requests_run(url: str) -> None:
    async def scenario() -> list[float]:
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=url, timeout=300, trust_env=False, limits=limits) as client:
            body = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
            running = [asyncio.create_task(client.post("/generate", json=body | {"text": f"Tell me about {i}."})) for i in range(32)]
            while (await client.get("/scheduler/stats")).json()["active_rows"] < 32:
                await asyncio.sleep(0.05)
            seconds = []
            while not any(task.done() for task in running):
                start = time.perf_counter()
                assert (await client.get("/health")).status_code == 200
                seconds.append(time.perf_counter() - start)
                await asyncio.sleep(0.01)
            assert all(answer.json()["tokens_generated"] == 24 for answer in await asyncio.gather(*running))
            return seconds

    seconds = sorted(asyncio.run(scenario()))
    assert len(seconds) > 50
    assert seconds[len(seconds) * 99 // 100] < 0.05


def test_a_repeated_prompt_says_what_the_cache_was_worth(url: str) -> None:
    def hits() -> int:
        stats = httpx.get(f"{url}/cache/stats", trust_env=False).json()
        assert stats["used_blocks"] + stats["cached_blocks"] + stats["free_blocks"] == stats["total_blocks"]
        return int(stats["hit_tokens"])

    body = {"text": "A story about a fox, told twice. " * 30, "max_tokens": 8, "temperature": 0}
    first, second = (httpx.post(f"{url}/generate", json=body, timeout=120, trust_env=False).json() for _ in range(2))
    # The template's own tokens may have been cached before.
    assert first["cache_hit_tokens"] < 100 < second["cache_hit_tokens"] == (first["prompt_tokens"] - 1) // 16 * 16
    assert first["text"] == second["text"]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        for _ in range(2):
            before = hits()
            usage = client.completions.create(model="embedded", prompt=str(body["text"]), max_tokens=8, temperature=0).usage
    assert usage is not None and usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // 16 * 16 == hits() - before


@pytest.mark.alone
def test_50_clients_that_vanish_leave_nothing_within_2_s(url: str) -> None:
    async def start_and_leave(client: httpx.AsyncClient, index: int) -> None:
        body = {"text": f"Count from {index}.", "max_tokens": 200, "ignore_eos": True, "stream": True}
        async with client.stream("POST", "/generate", json=body) as answer:
            async for line in answer.aiter_lines():
                if line:
                    return

    async def scenario() -> float:
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=url, timeout=300, trust_env=False, limits=limits) as client:
            await asyncio.gather(*(start_and_leave(client, i) for i in range(50)))
            start = time.monotonic()
            while True:
                scheduler, cache = (await client.get("/scheduler/stats")).json(), (await client.get("/cache/stats")).json()
                if (scheduler["active_rows"], scheduler["queue_depth"], cache["used_blocks"]) == (0, 0, 0):
                    return time.monotonic() - start
                assert time.monotonic() - start < 2, (scheduler, cache)
                await asyncio.sleep(0.02)

    assert asyncio.run(scenario()) < 2


@pytest.mark.alone
def test_a_long_prompt_holds_up_the_next_request_by_one_chunk_at_most(url: str) -> None:
    async def scenario() -> tuple[float, float]:
        async with httpx.AsyncClient(base_url=url, timeout=300, trust_env=False) as client:
            body = {"max_tokens": 1, "temperature": 0}
            alone = (await client.post("/generate", json=body | {"text": "Hello"})).json()["ttft_ms"]
            long = asyncio.create_task(client.post("/generate", json=body | {"text": "several words of a long story " * 600}))
            while (await client.get("/scheduler/stats")).json()["prefilling"] < 1:
                await asyncio.sleep(0.01)
            beside = (await client.post("/generate", json=body | {"text": "Hello there"})).json()["ttft_ms"]
            assert not long.done()
            whole = (await long).json()
            chunks = whole["prompt_tokens"] / 512
            return (beside - alone) / 1000, whole["total_ms"] / 1000 / chunks

    delay, chunk = asyncio.run(scenario())
    assert delay < 2.5 * chunk  # the rest of the chunk that runs, and the chunk that shares its step
