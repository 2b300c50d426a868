"""Bodies that cannot be read as JSON: the error says what is wrong with them. And how large a body may be."""

import json
import re

import httpx
import pytest
from api_server import TestServer
from fastapi import APIRouter, Response

from inference_server.api.json_route import MAX_OBJECTS, GenerationRoute
from inference_server.api.schemas.native import GenerateBody

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


# At one of these depths, a body can just be read as JSON and is too deep for what comes next.
SCHEMAS = ('{"default": ' + '{"a":' * depth + "1" + "}" * depth + "}" for depth in range(920, 990))
AROUND_THE_LIMIT = [f'{{"text": "a", "structured_outputs": {{"json": {schema}}}}}' for schema in SCHEMAS]


def test_what_can_be_read_and_not_be_written_again_is_nested_too_deeply(client: httpx.Client) -> None:
    statuses = set()
    for content in AROUND_THE_LIMIT:
        answer = client.post("/generate", content=content, headers={"Content-Type": "application/json"})
        statuses.add((answer.status_code, answer.json()["error"]["message"]))
    assert {status for status, _ in statuses} == {400}, statuses
    assert (400, "the body is nested too deeply") in statuses


def test_the_log_says_where_it_was_too_deep(server: TestServer, caplog: pytest.LogCaptureFixture) -> None:
    for content in AROUND_THE_LIMIT:
        server.client.post("/generate", content=content, headers={"Content-Type": "application/json", "X-Request-Id": "deep"})
    messages = [record.getMessage() for record in caplog.records if record.name == "inference_server.api.errors"]
    assert messages
    assert all(re.fullmatch(r"request deep is nested too deeply for .+\.py:\d+", message) for message in messages)


CHATS = [("/generate", {"text": "a"}), ("/v1/chat/completions", {"messages": []}), ("/v1/responses", {"input": "a"})]
KEYS = ["chat_template_kwargs", "metadata", "tools", "response_format", "text", "messages", "logit_bias", "structured_outputs"]


@pytest.mark.parametrize(("path", "body"), CHATS)
@pytest.mark.parametrize("key", KEYS)
def test_deep_values_are_no_fault_of_the_server(client: httpx.Client, path: str, body: dict[str, object], key: str) -> None:
    for depth in (200, 900):
        deep = '{"a":' * depth + "1" + "}" * depth
        content = json.dumps(body | {key: "DEEP"}).replace('"DEEP"', deep)
        answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code in (200, 400), answer.text


def test_a_generation_that_no_gate_knows_is_an_error() -> None:
    router = APIRouter(route_class=GenerationRoute)

    async def endpoint(body: GenerateBody) -> Response:
        raise NotImplementedError

    with pytest.raises(AssertionError, match=r"no gate would stand before /v2/generate"):
        router.add_api_route("/v2/generate", endpoint, methods=["POST"])
    router.add_api_route("/generate", endpoint, methods=["POST"])
