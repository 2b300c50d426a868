"""What is wrong with a body that cannot be read as JSON, in the error shape, and how much of it there may be."""

import json

import httpx
import pytest

from inference_server.api.json_route import MAX_OBJECTS

ROUTES = ["/generate", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize", "/simulate/start"]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "\xff"}', "not valid UTF-8: byte 10"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "too many digits"),
        (b"[" + b"{}," * MAX_OBJECTS + b"{}]", f"more than {MAX_OBJECTS} JSON objects"),
        (b'{"text": ', "not valid JSON"),
    ],
    ids=["bytes", "arrays", "objects", "digits", "many", "cut"],
)
def test_an_unreadable_body_is_400_and_says_why(client: httpx.Client, path: str, content: bytes, message: str) -> None:
    answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert message in error["message"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_value")


DEEP = json.loads("[" * 800 + "]" * 800)


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/responses", "/tokenize"])
@pytest.mark.parametrize("key", ["chat_template_kwargs", "metadata", "tools", "response_format", "text", "logit_bias", "structured_outputs"])
def test_deep_values_are_no_fault_of_the_server(client: httpx.Client, path: str, key: str) -> None:
    body = {
        "/generate": {"text": "a"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
        "/v1/responses": {"input": "a"},
        "/tokenize": {"messages": [{"role": "user", "content": "a"}]},
    }[path]
    for depth in (200, 800):
        value = '{"a":' * depth + "1" + "}" * depth
        content = json.dumps({k: v for k, v in body.items() if k != key})[:-1].rstrip("{") or ""
        content = f'{{"{key}": {value}, ' + json.dumps(body)[1:] if key not in body else f'{{"{key}": {value}}}'
        answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code in (200, 400), answer.text
