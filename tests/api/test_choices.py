"""Several choices and several prompts in one request: indices, roles, ends and usage on the wire."""

from typing import Any

import httpx
import pytest
from api_server import running
from echo_model import TOKENIZER, EchoBackend
from wire import parse_sse

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def usage_of(prompts: list[str], n: int) -> dict[str, Any]:
    """The usage of the echo model, which answers with as many tokens as its prompt has."""
    prompt_tokens = sum(len(TOKENIZER.encode(prompt)) for prompt in prompts)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": n * prompt_tokens,
        "total_tokens": (n + 1) * prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("prompts", [["one"], ["one", "two three"]])
def test_completions_whole(client: httpx.Client, prompts: list[str], n: int) -> None:
    for prompt in (prompts, [TOKENIZER.encode(text) for text in prompts]):
        body = client.post(TEXT, json={"prompt": prompt, "n": n}).json()
        texts = [text for text in prompts for _ in range(n)]
        assert body["choices"] == [
            {"index": index, "text": text, "logprobs": None, "finish_reason": "stop"} for index, text in enumerate(texts)
        ]
        assert body["usage"] == usage_of(prompts, n)


def test_chat_whole(client: httpx.Client) -> None:
    body = client.post(CHAT, json={"messages": [{"role": "user", "content": "hello"}], "n": 3, "temperature": 0}).json()
    message = {"role": "assistant", "content": "hello", "refusal": None}
    assert body["choices"] == [{"index": index, "message": message, "logprobs": None, "finish_reason": "stop"} for index in range(3)]
    assert body["usage"] == usage_of(["hello"], 3)


@pytest.mark.parametrize("include_usage", [False, True])
def test_completions_stream(client: httpx.Client, include_usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    chunks = parse_sse(client.post(TEXT, json={"prompt": ["one", "two"], "n": 2, "stream": True, **options}).content)
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    if include_usage:
        last = chunks.pop()
        assert (last["choices"], last["usage"]) == ([], usage_of(["one", "two"], 2))
        assert all(chunk["usage"] is None for chunk in chunks)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert len(choices) == len(chunks)
    for index, text in enumerate(["one", "one", "two", "two"]):
        own = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["text"] for choice in own) == text
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]


def test_chat_stream(client: httpx.Client) -> None:
    fields = {"n": 4, "stream": True, "stream_options": {"include_usage": True}}
    chunks = parse_sse(client.post(CHAT, json={"messages": [{"role": "user", "content": "hello"}], **fields}).content)
    assert chunks.pop()["usage"] == usage_of(["hello"], 4)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in range(4):
        first, *texts, last = [choice for choice in choices if choice["index"] == index]
        assert first["delta"] == {"role": "assistant", "content": "", "refusal": None}
        assert "".join(choice["delta"]["content"] for choice in texts) == "hello"
        assert (last["delta"], last["finish_reason"]) == ({}, "stop")
        assert all(choice["finish_reason"] is None for choice in (first, *texts))


def test_a_choice_that_ends_early_leaves_the_others_their_text() -> None:
    with running(EchoBackend(step_s=0.002), max_batch_size=2, max_batched_tokens=64) as server:
        prompts = ["a", "b" * 40, "c" * 3, "d" * 20]
        body = server.client.post(TEXT, json={"prompt": prompts, "n": 2, "max_tokens": 50}).json()
        assert [choice["text"] for choice in body["choices"]] == [prompt for prompt in prompts for _ in range(2)]
        server.wait_until_free()


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_an_error_ends_all_choices_once(path: str) -> None:
    backend = EchoBackend(step_s=0.01)
    prompt = {CHAT: {"messages": [{"role": "user", "content": "x" * 100}]}, TEXT: {"prompt": "x" * 100}}[path]
    with running(backend) as server:
        raw = b""
        with server.client.stream("POST", path, json={**prompt, "n": 3, "max_tokens": 90, "stream": True}) as answer:
            for block in answer.iter_raw():
                raw += block
                backend.failing = True
        *texts, last = parse_sse(raw)
        assert texts and last["error"]["code"] == "step_failed"
        assert all("error" not in chunk for chunk in texts)
        server.wait_until_free()
        assert server.context.engine.num_open == 0


def test_more_choices_than_places_are_refused() -> None:
    with running(max_queue_size=4) as server:
        answer = server.client.post(TEXT, json={"prompt": "a", "n": 5})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
        assert server.client.post(TEXT, json={"prompt": "a", "n": 4}).status_code == 200
