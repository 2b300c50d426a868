"""Thoughts over HTTP: kept apart from the content, whole and streamed, counted, and switched on and off by the request."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from api_server import TestServer, running
from dialect_model import QWEN_TEMPLATE, TOKENIZER, ScriptedBackend, load_dialect, scripted
from wire import parse_sse

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "Hi"}]
THOUGHT = "They greet me; so do I. 🙂"
GEMMA_ANSWER = f"<|channel>thought\n{THOUGHT}<channel|>Hello é."
QWEN_ANSWER = f"<think>\n{THOUGHT}\n</think>\n\nHello é."


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with running(ScriptedBackend(), load_model=load_dialect) as test_server:
        yield test_server


@pytest.fixture(scope="module")
def qwen_server() -> Iterator[TestServer]:
    with running(ScriptedBackend(template=QWEN_TEMPLATE), load_model=load_dialect) as test_server:
        yield test_server


def ask(server: TestServer, **fields: Any) -> dict[str, Any]:
    answer = server.client.post(CHAT, json={"messages": USER, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def streamed(server: TestServer, **fields: Any) -> tuple[str, str, dict[str, Any]]:
    """Thoughts, content and usage of the joined chunks."""
    body = {"messages": USER, "stream": True, "stream_options": {"include_usage": True}, **fields}
    *chunks, last = parse_sse(server.client.post(CHAT, json=body).content)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert all(len(delta) <= 1 for delta in deltas[1:])
    thoughts, texts = ("".join(delta.get(key, "") for delta in deltas) for key in ("reasoning_content", "content"))
    return thoughts, texts, last["usage"]


def test_gemma(server: TestServer) -> None:
    scripted(server, GEMMA_ANSWER)
    body = ask(server)
    message = body["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Hello é.", "refusal": None, "reasoning_content": THOUGHT}
    num_tokens = len(TOKENIZER.encode(f"<|channel>thought\n{THOUGHT}<channel|>", add_special_tokens=False))
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": num_tokens}
    assert streamed(server) == (THOUGHT, "Hello é.", body["usage"])


@pytest.mark.parametrize(
    ("fields", "answer", "num_tokens"),
    [
        ({}, QWEN_ANSWER, len(QWEN_ANSWER.partition("\n\n")[0].encode())),
        ({"chat_template_kwargs": {"opened": True}}, QWEN_ANSWER.removeprefix("<think>\n"), len(f"{THOUGHT}\n</think>".encode())),
        ({"max_tokens": len(f"<think>\n{THOUGHT}".encode())}, QWEN_ANSWER, len(f"<think>\n{THOUGHT}".encode())),
    ],
)
def test_qwen(qwen_server: TestServer, fields: dict[str, Any], answer: str, num_tokens: int) -> None:
    scripted(qwen_server, answer)
    body = ask(qwen_server, **fields)
    message = body["choices"][0]["message"]
    assert message["reasoning_content"] == THOUGHT
    assert message["content"] == ("" if "max_tokens" in fields else "Hello é.")
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": num_tokens}
    assert streamed(qwen_server, **fields) == (THOUGHT, message["content"], body["usage"])


def test_stop_strings_look_at_visible_text_only(server: TestServer) -> None:
    scripted(server, GEMMA_ANSWER)
    for stop, content in [("greet", "Hello é."), ("channel", "Hello é."), ("lo", "Hel"), ("I. 🙂Hello", "Hello é.")]:
        choice = ask(server, stop=stop)["choices"][0]
        assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == (content, THOUGHT)
        assert choice["finish_reason"] == "stop"


def test_the_switches_reach_the_template(server: TestServer) -> None:
    def prompt(**fields: Any) -> str:
        backend = scripted(server, "ok")
        ask(server, **fields)
        return backend.prompts[0]

    think = "<bos><|turn>system\n<|think|><turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n"
    plain = "<bos><|turn>user\nHi<turn|>\n<|turn>model\n"
    assert prompt() == plain
    assert prompt(chat_template_kwargs={"enable_thinking": True}) == think
    assert prompt(reasoning_effort="high") == prompt(reasoning_effort="minimal") == think
    assert prompt(reasoning_effort="none") == plain
    assert prompt(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}) == think
    assert prompt(chat_template_kwargs={"empty_thought": True}) == plain + "<|channel>thought\n<channel|>"
    system = [{"role": "system", "content": "Be kind."}, *USER]
    assert prompt(messages=system) == "<bos><|turn>system\nBe kind.<turn|>\n" + plain.removeprefix("<bos>")


def test_generate_and_tokenize_know_the_switch(server: TestServer) -> None:
    backend = scripted(server, GEMMA_ANSWER)
    body = {"text": "Hi", "chat_template_kwargs": {"enable_thinking": True}}
    whole = server.client.post("/generate", json=body).json()
    assert "<|think|>" in backend.prompts[0]
    assert (whole["text"], whole["reasoning_content"]) == ("Hello é.", THOUGHT)
    events = parse_sse(server.client.post("/generate", json={**body, "stream": True}).content)
    assert "".join(event.get("text", "") for event in events) == "Hello é."
    assert "".join(event.get("reasoning_content", "") for event in events) == THOUGHT
    tokens = server.client.post("/tokenize", json={"messages": USER, "chat_template_kwargs": {"enable_thinking": True}}).json()["tokens"]
    assert "<|think|>" in TOKENIZER.decode(tokens, skip_special_tokens=False)


@pytest.mark.parametrize("name", ["self", "messages", "tools", "add_generation_prompt", "bos_token", "raise_exception"])
def test_reserved_variables_are_refused(server: TestServer, name: str) -> None:
    for path, body in ((CHAT, {"messages": USER}), ("/generate", {"text": "Hi"})):
        answer = server.client.post(path, json={**body, "chat_template_kwargs": {name: "x"}})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "chat_template_kwargs"
        assert name in answer.json()["error"]["message"]


@pytest.mark.parametrize("fields", [{"reasoning_effort": "much"}, {"chat_template_kwargs": []}, {"chat_template_kwargs": "x"}])
def test_bad_switches_are_400(server: TestServer, fields: dict[str, Any]) -> None:
    answer = server.client.post(CHAT, json={"messages": USER, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == next(iter(fields))


def test_raw_prompts_are_not_looked_into(server: TestServer) -> None:
    scripted(server, GEMMA_ANSWER)
    body = server.client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 100}).json()
    assert body["choices"][0]["text"] == f"thought\n{THOUGHT}Hello é."
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_the_openai_client_reads_thoughts(server: TestServer, sdk: openai.OpenAI) -> None:
    scripted(server, GEMMA_ANSWER)
    answer = sdk.chat.completions.create(
        model="test/echo",
        messages=[{"role": "user", "content": "Hi"}],
        reasoning_effort="low",
        extra_body={"chat_template_kwargs": {"enable_thinking": True}},
    )
    assert answer.choices[0].message.reasoning_content == THOUGHT  # type: ignore[attr-defined]
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens
