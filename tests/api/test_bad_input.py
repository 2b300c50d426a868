"""Whatever a client sends, it gets a 4xx in the error shape, and the server goes on serving."""

import json
from typing import Any

import httpx
import pytest
from echo_model import MAX_MODEL_LEN, MODEL_NAME

USER = [{"role": "user", "content": "hi"}]
RUNNING_COUNTS = {"include_usage": True, "continuous_usage_stats": True}
CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/generate"

BAD_VALUES: list[tuple[str, dict[str, Any], str | None]] = [
    (CHAT, {}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": "hi"}, "messages"),
    (CHAT, {"messages": [{"role": "robot", "content": "hi"}]}, "messages"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
    (CHAT, {"messages": USER, "max_tokens": 0}, "max_tokens"),
    (CHAT, {"messages": USER, "max_completion_tokens": -1}, "max_completion_tokens"),
    (CHAT, {"messages": USER, "max_tokens": "5"}, "max_tokens"),
    (CHAT, {"messages": USER, "max_tokens": True}, "max_tokens"),
    (CHAT, {"messages": USER, "max_tokens": 10**400}, "max_tokens"),
    (CHAT, {"messages": USER, "temperature": -0.1}, "temperature"),
    (CHAT, {"messages": USER, "temperature": 3}, "temperature"),
    (CHAT, {"messages": USER, "temperature": float("nan")}, "temperature"),
    (CHAT, {"messages": USER, "temperature": float("inf")}, "temperature"),
    (CHAT, {"messages": USER, "temperature": "hot"}, "temperature"),
    (CHAT, {"messages": USER, "top_p": 0}, "top_p"),
    (CHAT, {"messages": USER, "top_p": 1.5}, "top_p"),
    (CHAT, {"messages": USER, "top_k": -2}, "top_k"),
    (CHAT, {"messages": USER, "min_p": float("-inf")}, "min_p"),
    (CHAT, {"messages": USER, "seed": 2**64}, "seed"),
    (CHAT, {"messages": USER, "seed": 1.5}, "seed"),
    (CHAT, {"messages": USER, "stop": ""}, "stop"),
    (CHAT, {"messages": USER, "stop": ["a"] * 17}, "stop"),
    (CHAT, {"messages": USER, "stop": [1]}, "stop"),
    (CHAT, {"messages": USER, "presence_penalty": 2.5}, "presence_penalty"),
    (CHAT, {"messages": USER, "frequency_penalty": "1"}, "frequency_penalty"),
    (CHAT, {"messages": USER, "repetition_penalty": 0}, "repetition_penalty"),
    (CHAT, {"messages": USER, "logit_bias": {"5": 101}}, "logit_bias"),
    (CHAT, {"messages": USER, "logit_bias": {"five": 1}}, "logit_bias"),
    (CHAT, {"messages": USER, "logit_bias": {"5": 1, "05": 2}}, "logit_bias"),
    (CHAT, {"messages": USER, "logit_bias": {"100000": 1}}, "logit_bias"),
    (CHAT, {"messages": USER, "logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    (CHAT, {"messages": USER, "min_tokens": -1}, "min_tokens"),
    (CHAT, {"messages": USER, "min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    (CHAT, {"messages": USER, "allowed_token_ids": [10**6]}, "allowed_token_ids"),
    (CHAT, {"messages": USER, "allowed_token_ids": [257], "min_tokens": 1}, "allowed_token_ids"),
    (CHAT, {"messages": USER, "stop_token_ids": [-1]}, "stop_token_ids"),
    (CHAT, {"messages": USER, "stop_token_ids": [10**6]}, "stop_token_ids"),
    (CHAT, {"messages": USER, "logprobs": 1}, "logprobs"),
    (CHAT, {"messages": USER, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"messages": USER, "top_logprobs": 1}, "top_logprobs"),
    (TEXT, {"prompt": "a", "logprobs": 21}, "logprobs"),
    (TEXT, {"prompt": "a", "logprobs": True}, "logprobs"),
    (TEXT, {"prompt": "a", "max_tokens": 0}, "max_tokens"),
    (TEXT, {"prompt": "a", "max_tokens": 0, "stream": True, "stream_options": RUNNING_COUNTS}, "max_tokens"),
    (CHAT, {"messages": USER, "stream": "yes"}, "stream"),
    (CHAT, {"messages": USER, "stream_options": {"include_usage": True}}, None),
    (CHAT, {"messages": [{"role": "user", "content": "x" * MAX_MODEL_LEN}]}, "messages"),
    (TEXT, {}, "prompt"),
    (TEXT, {"prompt": ""}, "prompt"),
    (TEXT, {"prompt": []}, "prompt"),
    (TEXT, {"prompt": 7}, "prompt"),
    (TEXT, {"prompt": ["a", ""]}, "prompt"),
    (TEXT, {"prompt": ["a", 1]}, "prompt"),
    (TEXT, {"prompt": [[1], []]}, "prompt"),
    (TEXT, {"prompt": ["a"] * 257}, "prompt"),
    (TEXT, {"prompt": ["a", "x" * MAX_MODEL_LEN]}, "prompt"),
    (TEXT, {"prompt": "a", "n": 0}, "n"),
    (CHAT, {"messages": USER, "n": 129}, "n"),
    (CHAT, {"messages": USER, "n": True}, "n"),
    (TEXT, {"prompt": [1, "a"]}, "prompt"),
    (TEXT, {"prompt": [-1]}, "prompt"),
    (TEXT, {"prompt": [10**6]}, "prompt"),
    (TEXT, {"prompt": "\ud800"}, "prompt"),
    (TEXT, {"prompt": "a", "user": "\ud800"}, "user"),
    (TEXT, {"prompt": "a", "user": "x" * 257}, "user"),
    ("/v1/responses", {"input": "a", "user": "\ud800"}, "user"),
    (TEXT, {"prompt": "x" * MAX_MODEL_LEN}, "prompt"),
    (NATIVE, {}, "text"),
    (NATIVE, {"text": ""}, "text"),
    (NATIVE, {"text": "\ud800"}, "text"),
    (NATIVE, {"text": "x" * MAX_MODEL_LEN}, "text"),
    (NATIVE, {"text": "a", "priority": "high"}, "priority"),
    (NATIVE, {"text": "a", "session_id": "s" * 257}, "session_id"),
    ("/tokenize", {}, None),
    ("/tokenize", {"prompt": "a", "messages": USER}, None),
    ("/detokenize", {"tokens": "a"}, "tokens"),
    ("/detokenize", {"tokens": [10**6]}, None),
]

UNSUPPORTED: list[tuple[str, str, Any]] = [
    (NATIVE, "n", 2),
    (CHAT, "tools", [{"type": "function", "function": {"name": "f"}}]),
    (CHAT, "response_format", {"type": "json_object"}),
    (CHAT, "reasoning_effort", "high"),
    (CHAT, "text", "hi"),
    (CHAT, "echo", True),
    (NATIVE, "logprobs", True),
    (TEXT, "best_of", 2),
    (TEXT, "suffix", "end"),
    (TEXT, "max_completion_tokens", 5),
    (NATIVE, "model", MODEL_NAME),
    (NATIVE, "nonsense", 1),
    (NATIVE, "\ud800", 1),
]

NEUTRAL: dict[str, Any] = {
    **{"n": 1, "logprobs": False, "top_logprobs": 0, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
    **{"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "response_format": {"type": "text"}},
    **{"stop": None, "seed": None, "temperature": None, "max_tokens": None, "stream_options": None, "audio": None, "unheard_of": None},
    **{"store": True, "metadata": {"a": "b"}, "service_tier": "auto", "user": "u", "prompt_cache_key": "k", "safety_identifier": "s"},
}
NEUTRAL_TEXT: dict[str, Any] = {"best_of": 1, "echo": False, "suffix": None, "logprobs": None, "n": 1, "repetition_penalty": 1.0}


def body_of(path: str) -> dict[str, Any]:
    return {CHAT: {"messages": USER}, TEXT: {"prompt": "hi"}, NATIVE: {"text": "hi"}}[path]


def check(answer: httpx.Response, status: int, code: str | None = None, param: str | None = None) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(answer.json()) == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]
    if code is not None:
        assert error["code"] == code
    if param is not None:
        assert error["param"] == param


@pytest.fixture(autouse=True)
def _still_serving(client: httpx.Client) -> Any:
    yield
    assert client.post("/generate", json={"text": "ok"}).json()["text"] == "ok"


@pytest.mark.parametrize(("path", "body", "param"), BAD_VALUES)
def test_bad_values_are_400(client: httpx.Client, path: str, body: dict[str, Any], param: str | None) -> None:
    content = json.dumps(body)
    check(client.post(path, content=content, headers={"Content-Type": "application/json"}), 400, param=param)


@pytest.mark.parametrize(("path", "key", "value"), UNSUPPORTED)
def test_what_is_not_implemented_is_refused_by_name(client: httpx.Client, path: str, key: str, value: Any) -> None:
    content = json.dumps({**body_of(path), key: value})
    answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
    check(answer, 400, "unsupported_parameter", key)
    assert key in answer.json()["error"]["message"]


def test_neutral_values_and_hints_are_accepted(client: httpx.Client) -> None:
    assert client.post(CHAT, json={**body_of(CHAT), **NEUTRAL}).status_code == 200
    assert client.post(TEXT, json={**body_of(TEXT), **NEUTRAL_TEXT}).status_code == 200
    message = {"role": "assistant", "content": "hi", "tool_calls": [], "refusal": None, "annotations": []}
    assert client.post(CHAT, json={"messages": [*USER, message, *USER]}).status_code == 200


def test_other_content_parts_are_refused_by_name(client: httpx.Client) -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}]
    answer = client.post(CHAT, json={"messages": [{"role": "user", "content": parts}]})
    check(answer, 400, "unsupported_parameter", "messages")
    assert "image_url" in answer.json()["error"]["message"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"text"', b"null", b'{"text": "\xff"}', b"\x00", b"[" * 100_000, b'{"text": tru}'])
@pytest.mark.parametrize("path", [CHAT, TEXT, NATIVE, "/tokenize"])
def test_broken_bodies_are_400(client: httpx.Client, path: str, content: bytes) -> None:
    check(client.post(path, content=content, headers={"Content-Type": "application/json"}), 400)


def test_a_body_of_another_type_is_400(client: httpx.Client) -> None:
    answer = client.post(NATIVE, data={"text": "hi"})
    check(answer, 400)
    assert "Content-Type" in answer.json()["error"]["message"]


@pytest.mark.parametrize("content_type", ["Application/JSON", "application/json; charset=utf-8", "application/vnd.api+json"])
def test_any_json_type_will_do(client: httpx.Client, content_type: str) -> None:
    assert client.post(NATIVE, content=b'{"text": "hi", "max_tokens": 1}', headers={"Content-Type": content_type}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "start"),
    [
        (CHAT, {"messages": [*USER, {"role": "user", "content": 5}]}, "messages[1].content: Input should be a valid string; or "),
        (CHAT, {"messages": [{"content": "a"}, {"role": "user"}]}, "messages[0].role: Field required"),
        (CHAT, {"messages": USER, "stream_options": {}}, "stream_options is only allowed when stream is true"),
        (TEXT, {"prompt": [1, "a"]}, "prompt: Input should be a valid string; or Input should be a valid integer"),
        (CHAT, {"messages": USER, "tool_choice": 5}, "tool_choice: Input should be 'none', 'auto' or 'required'; or "),
        (
            TEXT,
            {"prompt": "a", "structured_outputs": {}},
            "structured_outputs: exactly one of json, json_object, regex, choice and grammar is ",
        ),
        (TEXT, {"prompt": "a", "structured_outputs": {"json": 5}}, "structured_outputs.json: Input should be a valid dictionary; or "),
        ("/tokenize", {}, "exactly one of prompt and messages is required"),
    ],
)
def test_messages_name_the_field_in_the_clients_terms(client: httpx.Client, path: str, body: dict[str, Any], start: str) -> None:
    message = client.post(path, json=body).json()["error"]["message"]
    assert message.startswith(start)
    assert "constrained" not in message


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize"])
def test_unknown_models_are_404(client: httpx.Client, path: str) -> None:
    body = {"prompt": "hi"} if path == "/tokenize" else body_of(path)
    check(client.post(path, json={**body, "model": "other"}), 404, "model_not_found", "model")


def test_unknown_routes_are_404_and_wrong_methods_405(client: httpx.Client) -> None:
    check(client.get("/nowhere"), 404, "not_found")
    check(client.post("/nowhere", json={}), 404, "not_found")
    for method, path in [("GET", NATIVE), ("DELETE", CHAT), ("POST", "/health"), ("PUT", "/v1/models")]:
        answer = client.request(method, path)
        check(answer, 405, "method_not_allowed")
        assert answer.headers["allow"]


def test_a_huge_body_is_413_declared_or_chunked(client: httpx.Client) -> None:
    huge = b'{"text": "' + b"x" * 10_000_000 + b'"}'
    headers = {"Content-Type": "application/json"}
    check(client.post(NATIVE, content=huge, headers=headers), 413, "request_too_large")
    chunks = (huge[i : i + 65_536] for i in range(0, len(huge), 65_536))
    check(client.post(NATIVE, content=chunks, headers=headers), 413, "request_too_large")
