"""The official `openai` client, sync and async, streaming and not."""

import asyncio
from collections.abc import Iterator

import openai
import pytest
from echo_model import MODEL_NAME
from openai.types.chat import ChatCompletionUserMessageParam

MESSAGES: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Paris, of course."}]


@pytest.fixture
def sync_client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(sync_client: openai.OpenAI) -> None:
    assert [model.id for model in sync_client.models.list()] == [MODEL_NAME]
    assert sync_client.models.retrieve(MODEL_NAME).id == MODEL_NAME


def test_chat(sync_client: openai.OpenAI) -> None:
    answer = sync_client.chat.completions.create(model=MODEL_NAME, messages=MESSAGES, temperature=0, seed=1, user="u", n=1)
    assert answer.choices[0].message.content == MESSAGES[0]["content"]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_chat_stream(sync_client: openai.OpenAI) -> None:
    chunks = list(
        sync_client.chat.completions.create(
            model=MODEL_NAME, messages=MESSAGES, stream=True, stream_options={"include_usage": True}, max_completion_tokens=5
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Paris"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    usages = [chunk.usage for chunk in chunks if chunk.usage]
    assert len(usages) == 1
    assert usages[0].completion_tokens == 5


def test_completions(sync_client: openai.OpenAI) -> None:
    answer = sync_client.completions.create(model=MODEL_NAME, prompt="one two", stop=" ")
    assert answer.choices[0].text == "one"
    stream = sync_client.completions.create(model=MODEL_NAME, prompt=[97, 98], stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "b"


def test_several_choices(sync_client: openai.OpenAI) -> None:
    answer = sync_client.chat.completions.create(model=MODEL_NAME, messages=MESSAGES, n=3, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.message.content for choice in answer.choices] == [MESSAGES[0]["content"]] * 3
    texts = [""] * 4
    for chunk in sync_client.completions.create(model=MODEL_NAME, prompt=["one", "two"], n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == ["one", "one", "two", "two"]


def test_errors_arrive_as_the_clients_own(sync_client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        sync_client.chat.completions.create(model="other", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        sync_client.chat.completions.create(model=MODEL_NAME, messages=MESSAGES, extra_body={"use_beam_search": True})
    assert (refused.value.param, refused.value.code) == ("use_beam_search", "unsupported_parameter")


def test_async_clients_side_by_side(url: str) -> None:
    async def ask(client: openai.AsyncOpenAI, text: str) -> str:
        stream = await client.chat.completions.create(model=MODEL_NAME, messages=[{"role": "user", "content": text}], stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            whole = await client.chat.completions.create(model=MODEL_NAME, messages=MESSAGES)
            assert whole.choices[0].message.content == MESSAGES[0]["content"]
            return await asyncio.gather(*(ask(client, f"client {i} says {'x' * i}") for i in range(20)))

    assert asyncio.run(run()) == [f"client {i} says {'x' * i}" for i in range(20)]
