"""Answers that fit the format that the client asks for, over HTTP and by the client's own helpers; refusals name what they refuse."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from api_server import TestServer, running
from constrained_model import ConstrainedBackend, load_constrained
from dialect_model import QWEN_TEMPLATE
from pydantic import BaseModel
from wire import parse_sse

CHAT, TEXT, NATIVE, RESPONSES = "/v1/chat/completions", "/v1/completions", "/generate", "/v1/responses"
USER: list[Any] = [{"role": "user", "content": "Who?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
OTHER = {"type": "object", "properties": {"q": {"enum": ["a"]}}, "required": ["q"], "additionalProperties": False}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}},
    {"type": "function", "function": {"name": "look_up", "parameters": OTHER}},
]
PLAIN_TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
TEMPLATES = {"gemma": ConstrainedBackend.template, "qwen": QWEN_TEMPLATE, "plain": PLAIN_TEMPLATE}


class Person(BaseModel):
    name: str
    age: int
    tags: list[str]
    friend: "Person | None"


@pytest.fixture(scope="module", params=list(TEMPLATES))
def server(request: pytest.FixtureRequest) -> Iterator[TestServer]:
    with running(ConstrainedBackend(template=TEMPLATES[request.param]), load_model=load_constrained) as test_server:
        yield test_server


@pytest.fixture(scope="module")
def gemma() -> Iterator[TestServer]:
    with running(ConstrainedBackend(), load_model=load_constrained) as test_server:
        yield test_server


@pytest.fixture
def sdk(gemma: TestServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gemma.url}/v1", api_key="none", max_retries=0) as official:
        yield official


def say(server: TestServer, answer: str) -> None:
    assert isinstance(server.backend, ConstrainedBackend)
    server.backend.answer = answer


def ask(server: TestServer, **fields: Any) -> dict[str, Any]:
    answer = server.client.post(CHAT, json={"messages": USER, **fields})
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


STRUCTURED = [
    ({"json": SCHEMA}, "nonsense", '{"city":"","days":1}'),
    ({"json": json.dumps(SCHEMA)}, '{"city": "P", "days": 7}', '{"city": "P", "days": 7}'),
    ({"json_object": True}, "{}}", "{}"),
    ({"regex": "[0-9]{2}-x"}, "1", "10-x"),
    ({"choice": ["yes", "no"]}, "never", "no"),
    ({"grammar": 'root ::= "a" b\nb ::= "b" | "c"'}, "ac", "ac"),
]


@pytest.mark.parametrize(("wanted", "answer", "text"), STRUCTURED, ids=[next(iter(wanted)) for wanted, _, _ in STRUCTURED])
def test_structured_outputs_on_every_route(gemma: TestServer, wanted: dict[str, Any], answer: str, text: str) -> None:
    say(gemma, answer)
    asked = {"structured_outputs": wanted, "max_tokens": 100}
    choice = ask(gemma, **asked)
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    post = gemma.client.post
    assert post(TEXT, json={"prompt": "hi", **asked}).json()["choices"][0]["text"] == text
    assert post(NATIVE, json={"text": "hi", **asked}).json()["text"] == text
    assert post(RESPONSES, json={"input": "hi", **asked}).json()["output"][0]["content"][0]["text"] == text
    chunks = parse_sse(post(CHAT, json={"messages": USER, "stream": True, **asked}).content)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == text


def test_response_format(gemma: TestServer) -> None:
    say(gemma, "{}}")
    assert ask(gemma, response_format={"type": "json_object"})["message"]["content"] == "{}"
    say(gemma, "nonsense")
    assert ask(gemma, response_format={"type": "text"})["message"]["content"] == "nonsense"
    wanted = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": SCHEMA}}
    assert ask(gemma, response_format=wanted)["message"]["content"] == '{"city":"","days":1}'
    say(gemma, "[1]")
    assert ask(gemma, response_format={"type": "json_schema", "json_schema": {"name": "any"}})["message"]["content"] == "[1]"


def test_the_client_parses_a_model_of_its_own(gemma: TestServer, sdk: openai.OpenAI) -> None:
    say(gemma, '{"name": "Ann", "age": 7, "tags": ["x"], "friend": {"name": ')
    completion = sdk.chat.completions.parse(model="test/echo", messages=USER, response_format=Person)
    person = completion.choices[0].message.parsed
    assert person is not None
    assert (person.name, person.age, person.tags) == ("Ann", 7, ["x"])
    assert person.friend is not None
    response = sdk.responses.parse(model="test/echo", input="Who?", text_format=Person)
    assert response.output_parsed == person
    assert response.text.format is not None
    assert response.text.format.type == "json_schema"


def test_every_choice_has_its_own_place_in_the_grammar(gemma: TestServer) -> None:
    say(gemma, '{"city": "P", "days": 7}')
    body = {"messages": USER, "n": 3, "structured_outputs": {"json": SCHEMA}}
    choices = gemma.client.post(CHAT, json=body).json()["choices"]
    assert [choice["message"]["content"] for choice in choices] == ['{"city": "P", "days": 7}'] * 3


def calls_of(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in choice["message"]["tool_calls"]]


def test_a_call_is_forced_on_any_model(server: TestServer) -> None:
    say(server, "I will not.")
    assert calls_of(ask(server, tools=TOOLS, tool_choice="required")) == [("look_up", {"q": "a"})]
    named = {"type": "function", "function": {"name": "weather"}}
    assert calls_of(ask(server, tools=TOOLS, tool_choice=named, parallel_tool_calls=False)) == [("weather", {"city": "", "days": 1})]
    body = {"input": "hi", "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}]}
    response = server.client.post(RESPONSES, json={**body, "tool_choice": {"type": "function", "name": "weather"}}).json()
    assert [(item["type"], item["name"]) for item in response["output"]] == [("function_call", "weather")]
    server.wait_until_free()


def test_calls_in_parallel_only_where_they_are_wanted(gemma: TestServer) -> None:
    call = '<|tool_call>call:look_up{"q": "a"}<tool_call|>'
    say(gemma, call * 2)
    assert len(calls_of(ask(gemma, tools=TOOLS, tool_choice="required"))) == 2
    assert len(calls_of(ask(gemma, tools=TOOLS, tool_choice="required", parallel_tool_calls=False))) == 1


def test_a_strict_tool_is_enforced_where_the_model_calls_it(gemma: TestServer) -> None:
    say(gemma, "Well. <|tool_call>call:weather{nonsense}<tool_call|> So.")
    choice = ask(gemma, tools=TOOLS, max_tokens=100)
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], choice["message"]["content"].split()[0]) == ("weather", "Well.")
    assert set(json.loads(call["function"]["arguments"])) == {"city", "days"}
    say(gemma, 'I: <|tool_call>call:look_up{"z": 1}<tool_call|>, <|tool_call>call:look_up{}<tool_call|>.')
    calls = ask(gemma, tools=TOOLS)["message"]["tool_calls"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"z": 1}, {}]
    say(gemma, "No call, but {nonsense}.")
    assert ask(gemma, tools=TOOLS)["message"]["content"] == "No call, but {nonsense}."


def test_the_grammar_begins_after_the_thought(gemma: TestServer) -> None:
    say(gemma, "<|channel>thought\nHm, {<channel|>{}}")
    message = ask(gemma, response_format={"type": "json_object"})["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm, {", "{}")


def test_bad_words_do_not_come_even_in_thoughts(gemma: TestServer) -> None:
    """This model ends its answer where a forbidden token would come."""
    say(gemma, "<|channel>thought\nA wish<channel|>It is bad.")
    for words, thought, text in ((["bad"], "A wish", "It is ba"), (["bad", "wish"], "A wis", ""), ([], "A wish", "It is bad.")):
        message = ask(gemma, bad_words=words)["message"]
        assert (message.get("reasoning_content"), message["content"]) == (thought, text)


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "json_schema"}}, "response_format", "invalid_value"),
    ({"response_format": {"type": "xml"}}, "response_format", "invalid_value"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": False}}}, "response_format", "invalid_value"),
    ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs", "unsupported_parameter"),
    ({"structured_outputs": {"json": False}}, "structured_outputs", "invalid_value"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs", "invalid_value"),
    ({"structured_outputs": {"json": {"$ref": "#"}}}, "structured_outputs", "invalid_value"),
    ({"structured_outputs": {"json": {"enum": ["x" * 70_000]}}}, "structured_outputs", "invalid_value"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs", "invalid_value"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs", "invalid_value"),
    ({"structured_outputs": {"grammar": "root ::= ("}}, "structured_outputs", "invalid_value"),
    ({"structured_outputs": {}}, "structured_outputs", "invalid_value"),
    ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "invalid_value"),
    ({"structured_outputs": {"structural_tag": "a"}}, "structural_tag", "unsupported_parameter"),
    ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos", "unsupported_parameter"),
    ({"structured_outputs": {"regex": "a"}, "min_tokens": 3}, "min_tokens", "unsupported_parameter"),
    ({"structured_outputs": {"regex": "a"}, "allowed_token_ids": [5]}, "allowed_token_ids", "unsupported_parameter"),
    ({"structured_outputs": {"regex": "a"}, "bad_words": ["b"]}, "bad_words", "unsupported_parameter"),
    ({"bad_words": ["b"], "allowed_token_ids": [5]}, "bad_words", "unsupported_parameter"),
    ({"bad_words": ["b", " "]}, "bad_words", "invalid_value"),
    ({"bad_words": ["b"] * 65}, "bad_words", "invalid_value"),
    ({"structured_outputs": {"regex": "a"}, "tools": TOOLS, "tool_choice": "required"}, "structured_outputs", "invalid_value"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "invalid_value"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}, "strict": True}}]},
        "tools",
        "unsupported_parameter",
    ),
]


@pytest.mark.parametrize(("fields", "param", "code"), BAD)
def test_what_cannot_be_enforced_is_refused_by_name(gemma: TestServer, fields: dict[str, Any], param: str, code: str) -> None:
    answer = gemma.client.post(CHAT, json={"messages": USER, **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code)


def test_a_grammar_that_takes_long_to_compile_holds_up_nobody(gemma: TestServer) -> None:
    """The bombs take about a second each to compile, two at a time."""
    say(gemma, "fine")
    choice = {"choice": ["fine", "well"]}
    assert ask(gemma, structured_outputs=choice)["message"]["content"] == "fine"
    schemas = [{"type": "object", "properties": {f"p{n}_{i}": {"type": "string"} for i in range(1500)}} for n in range(3)]
    statuses: list[int] = []

    def bomb(schema: Any) -> None:
        body = {"messages": USER, "structured_outputs": {"json": schema}, "max_tokens": 1}
        statuses.append(gemma.client.post(CHAT, json=body, timeout=60).status_code)

    threads = [threading.Thread(target=bomb, args=(schema,)) for schema in schemas]
    for thread in threads:
        thread.start()
    num_answers = 0
    while any(thread.is_alive() for thread in threads):
        assert ask(gemma)["message"]["content"] == "fine"
        assert ask(gemma, structured_outputs=choice)["message"]["content"] == "fine"
        num_answers += 1
    assert len(statuses) == 3
    assert set(statuses) <= {200, 400}
    assert num_answers > 2
