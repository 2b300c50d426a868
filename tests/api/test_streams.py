"""The wire shape of every generation, whole and streamed, checked byte by byte."""

import json
import time
from typing import Any

import httpx
import pytest
from api_server import running
from echo_model import MODEL_NAME, TOKENIZER, EchoBackend
from wire import parse_sse

from inference_server.api.schemas.native import GenerateResponse

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/generate"
ANSWER = 'Paris, “é” 🙂\u2028"\\'


def body_of(path: str, text: str = ANSWER, **fields: Any) -> dict[str, Any]:
    prompt = {CHAT: {"messages": [{"role": "user", "content": text}]}, TEXT: {"prompt": text, "max_tokens": 100}, NATIVE: {"text": text}}
    return {**prompt[path], **fields}


def stream(client: httpx.Client, path: str, **fields: Any) -> list[Any]:
    answer = client.post(path, json=body_of(path, stream=True, **fields))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    return parse_sse(answer.content)


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


NUM_PROMPT_TOKENS = len(TOKENIZER.encode(ANSWER))
USAGE = usage_of(NUM_PROMPT_TOKENS, NUM_PROMPT_TOKENS)  # the prompt includes begin of text, the answer end of text


def test_chat_whole(client: httpx.Client) -> None:
    body = client.post(CHAT, json=body_of(CHAT, model=MODEL_NAME)).json()
    assert body.pop("id").startswith("chatcmpl-")
    assert abs(body.pop("created") - time.time()) < 60
    message = {"role": "assistant", "content": ANSWER, "refusal": None}
    assert body == {
        "object": "chat.completion",
        "model": MODEL_NAME,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": USAGE,
    }


def test_completion_whole(client: httpx.Client) -> None:
    body = client.post(TEXT, json=body_of(TEXT)).json()
    assert body.pop("id").startswith("cmpl-")
    assert abs(body.pop("created") - time.time()) < 60
    assert body == {
        "object": "text_completion",
        "model": MODEL_NAME,
        "choices": [{"index": 0, "text": ANSWER, "logprobs": None, "finish_reason": "stop"}],
        "usage": USAGE,
    }


def test_native_whole(client: httpx.Client) -> None:
    body = client.post(NATIVE, json=body_of(NATIVE, session_id="s", priority=-1)).json()
    assert next(iter(body)) == "text", "what people look for comes first"
    GenerateResponse.model_validate(body, strict=True)
    assert body.pop("request_id")
    assert 0 < body.pop("ttft_ms") <= body.pop("total_ms")
    token_ids = body.pop("token_ids")
    assert TOKENIZER.decode(token_ids) == ANSWER
    assert body == {
        "text": ANSWER,
        "finish_reason": "stop",
        "prompt_tokens": NUM_PROMPT_TOKENS,
        "tokens_generated": len(token_ids),
        "cache_hit_tokens": 0,
    }


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_openai_stream(client: httpx.Client, path: str, include_usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    chunks = stream(client, path, **options)
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert chunks[0]["object"] == ("chat.completion.chunk" if path == CHAT else "text_completion")
    if include_usage:
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"] == USAGE
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    if path == CHAT:
        assert choices.pop(0)["delta"] == {"role": "assistant", "content": "", "refusal": None}
        assert choices.pop()["delta"] == {}
        assert all(set(choice["delta"]) == {"content"} for choice in choices)
        assert "".join(choice["delta"]["content"] for choice in choices) == ANSWER
    else:
        assert "".join(choice["text"] for choice in choices) == ANSWER


def test_native_stream(client: httpx.Client) -> None:
    first, *middle, last = stream(client, NATIVE)
    assert set(first) == {"text", "ttft_ms"}
    assert all(set(event) == {"text"} for event in middle)
    assert "".join(event["text"] for event in (first, *middle)) == ANSWER
    assert last["text"] == ""
    assert last["done"] is True
    assert last["finish_reason"] == "stop"
    assert (last["prompt_tokens"], last["tokens_generated"], last["cache_hit_tokens"]) == (NUM_PROMPT_TOKENS, NUM_PROMPT_TOKENS, 0)
    assert 0 < last["ttft_ms"] <= last["total_ms"]
    assert last["request_id"]


def test_length_stop_strings_and_eos(client: httpx.Client) -> None:
    def choice(**fields: Any) -> tuple[str, str]:
        first = client.post(TEXT, json={"prompt": "abcdefghijklmnopqrstuvwxyz", **fields}).json()["choices"][0]
        return first["text"], first["finish_reason"]

    assert choice() == ("abcdefghijklmnop", "length")  # OpenAI's default is 16 tokens
    assert choice(max_tokens=3) == ("abc", "length")
    assert choice(stop="de") == ("abc", "stop")
    assert choice(stop=["xyz", "f"], max_tokens=50) == ("abcde", "stop")
    assert choice(max_tokens=30, ignore_eos=True) == ("abcdefghijklmnopqrstuvwxyzabcd", "length")
    assert choice(max_tokens=100_000) == ("abcdefghijklmnopqrstuvwxyz", "stop")


def test_prompts_as_ids_parts_and_roles(client: httpx.Client) -> None:
    ids = TOKENIZER.encode("hello")
    for prompt in (ids, [ids], ["hello"]):
        assert client.post(TEXT, json={"prompt": prompt}).json()["choices"][0]["text"] == "hello"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    roles = ["system", "developer", "user", "assistant", "tool"]
    body = {"messages": [{"role": role, "content": parts, "name": "n", "tool_call_id": "t"} for role in roles]}
    content = client.post(CHAT, json={**body, "max_completion_tokens": 9, "max_tokens": 1}).json()["choices"][0]["message"]["content"]
    assert content == "ababababa"


def test_pings_keep_a_silent_stream_alive() -> None:
    backend = EchoBackend()
    with running(backend, options={"ping_interval_s": 0.05}) as server:
        backend.gate.clear()
        raw = b""
        with server.client.stream("POST", CHAT, json=body_of(CHAT, "hello", stream=True)) as answer:
            for block in answer.iter_raw():
                raw += block
                if raw.count(b": ping\n\n") == 3:
                    backend.gate.set()
        assert raw.startswith(b": ping\n\n: ping\n\n: ping\n\n")
        texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in parse_sse(raw)]
        assert "".join(texts) == "hello"


@pytest.mark.parametrize("path", [CHAT, TEXT, NATIVE])
def test_an_error_before_the_first_token_has_a_status(path: str) -> None:
    with running(EchoBackend(failing=True)) as server:
        for is_stream in (False, True):
            answer = server.client.post(path, json=body_of(path, stream=is_stream))
            assert answer.status_code == 500
            assert answer.json()["error"]["code"] == "step_failed"
            assert "secret" not in answer.text
        server.wait_until_free()


@pytest.mark.parametrize("path", [CHAT, TEXT, NATIVE])
def test_an_error_after_text_is_an_event(path: str) -> None:
    backend = EchoBackend(step_s=0.01)
    with running(backend) as server:
        raw = b""
        with server.client.stream("POST", path, json=body_of(path, "x" * 100, stream=True)) as answer:
            assert answer.status_code == 200
            for block in answer.iter_raw():
                raw += block
                backend.failing = True
        *texts, last = parse_sse(raw)
        assert texts
        assert last["error"]["code"] == "step_failed"
        assert set(last["error"]) == {"message", "type", "param", "code"}
        assert b"secret" not in raw
        server.wait_until_free()


def test_a_deadline_is_504_or_a_finish_reason() -> None:
    with running(EchoBackend(step_s=0.02), request_deadline_s=0.3, prefill_chunk_size=16) as server:
        for is_stream in (False, True):
            answer = server.client.post(CHAT, json=body_of(CHAT, "a long prompt " * 100, stream=is_stream))
            assert answer.status_code == 504, answer.text
            assert answer.json()["error"]["code"] == "deadline_exceeded"
        chunks = stream(server.client, TEXT, text="abc", ignore_eos=True)
        assert chunks[-1]["choices"][0]["finish_reason"] == "timeout"
        whole = server.client.post(TEXT, json=body_of(TEXT, ignore_eos=True)).json()
        assert whole["choices"][0]["finish_reason"] == "timeout"
        server.wait_until_free()


def test_whole_answers_are_plain_json(client: httpx.Client) -> None:
    answer = client.post(CHAT, json=body_of(CHAT))
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.content)["choices"][0]["message"]["content"] == ANSWER
