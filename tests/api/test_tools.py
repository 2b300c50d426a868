"""Tool calls over HTTP: whole and streamed, refused where they are impossible, and put into the next prompt with their results."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from api_server import TestServer, running
from dialect_model import QWEN_TEMPLATE, ScriptedBackend, load_dialect, scripted
from wire import parse_sse

CHAT = "/v1/chat/completions"
USER: list[Any] = [{"role": "user", "content": "Weather in Paris?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": ["integer", "null"]}}, "required": ["city"]}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "get_weather", "description": "Looks.", "parameters": SCHEMA}}]
ARGUMENTS = {"city": 'P "é"', "days": 3, "where": {"lat": 1.5, "tags": ["a", None]}}
GEMMA_CALL = '<|tool_call>call:get_weather{city:<|"|>P "é"<|"|>,days:3,where:{lat:1.5,tags:[<|"|>a<|"|>,null]}}<tool_call|>'
QWEN_CALL = "\n<tool_call>\n" + json.dumps({"name": "get_weather", "arguments": ARGUMENTS}, ensure_ascii=False) + "\n</tool_call>"
DIALECTS = {"gemma": ScriptedBackend, "qwen": lambda: ScriptedBackend(template=QWEN_TEMPLATE)}
CALLS = {"gemma": GEMMA_CALL, "qwen": QWEN_CALL}


@pytest.fixture(scope="module", params=["gemma", "qwen"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(name: str) -> Iterator[TestServer]:
    with running(DIALECTS[name](), load_model=load_dialect) as test_server:
        yield test_server


def ask(server: TestServer, **fields: Any) -> dict[str, Any]:
    answer = server.client.post(CHAT, json={"messages": USER, "tools": TOOLS, **fields})
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def streamed_deltas(server: TestServer, **fields: Any) -> tuple[list[dict[str, Any]], str]:
    body = {"messages": USER, "tools": TOOLS, "stream": True, **fields}
    choices = [chunk["choices"][0] for chunk in parse_sse(server.client.post(CHAT, json=body).content)]
    assert all(choice["finish_reason"] is None for choice in choices[:-1])
    return [choice["delta"] for choice in choices], choices[-1]["finish_reason"]


def test_a_call(server: TestServer, name: str) -> None:
    backend = scripted(server, CALLS[name].lstrip())
    choice = ask(server)
    assert "get_weather" in backend.prompts[0]
    call = choice["message"]["tool_calls"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
    assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
    assert call["id"].startswith("call_")
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS


def test_a_stream_of_two_calls_after_text(server: TestServer, name: str) -> None:
    scripted(server, "I look." + CALLS[name] * 2)
    deltas, finish_reason = streamed_deltas(server)
    assert finish_reason == "tool_calls"
    assert "".join(delta.get("content", "") for delta in deltas).rstrip("\n") == "I look."
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", [])]
    for index in (0, 1):
        first, *rest = [piece for piece in pieces if piece["index"] == index]
        assert set(first) == {"index", "id", "type", "function"}
        assert (first["type"], first["function"]["name"]) == ("function", "get_weather")
        assert all(set(piece) == {"index", "function"} and set(piece["function"]) == {"arguments"} for piece in rest)
        assert json.loads("".join(piece["function"]["arguments"] for piece in (first, *rest))) == ARGUMENTS
    assert len({piece["id"] for piece in pieces if "id" in piece}) == 2


def test_unclosed_markup_is_text(server: TestServer, name: str) -> None:
    for cut in (12, 30, -1):
        markup = CALLS[name].lstrip()[:cut]
        scripted(server, "Hm. " + markup)
        choice = ask(server)
        assert choice["finish_reason"] == "stop"
        assert choice["message"] == {"role": "assistant", "content": "Hm. " + markup, "refusal": None}
        deltas, finish_reason = streamed_deltas(server)
        assert ("".join(delta.get("content", "") for delta in deltas), finish_reason) == ("Hm. " + markup, "stop")


def test_one_call_where_parallel_ones_are_not_wanted(server: TestServer, name: str) -> None:
    scripted(server, CALLS[name] * 2 + "more")
    choice = ask(server, parallel_tool_calls=False)
    assert choice["finish_reason"] == "tool_calls"
    assert len(choice["message"]["tool_calls"]) == 1
    server.wait_until_free()


def test_with_none_the_model_does_not_see_the_tools(server: TestServer) -> None:
    backend = scripted(server, "Hi")
    assert ask(server, tool_choice="none")["message"]["content"] == "Hi"
    assert "get_weather" not in backend.prompts[0]


def test_calls_and_results_render_back(server: TestServer, name: str) -> None:
    backend = scripted(server, CALLS[name])
    message = ask(server)["message"]
    backend.prompts.clear()
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
    backend.answer = "Sunny."
    assert ask(server, messages=[*USER, message, result])["message"]["content"] == "Sunny."
    assert CALLS[name].strip() in backend.prompts[0]
    assert "sunny" in backend.prompts[0].rpartition(CALLS[name][-12:])[2]


def test_the_openai_client_calls_tools(server: TestServer, sdk: openai.OpenAI, name: str) -> None:
    scripted(server, CALLS[name])
    answer = sdk.chat.completions.create(model="test/echo", messages=USER, tools=TOOLS, tool_choice="auto")
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert calls[0].type == "function"
    assert json.loads(calls[0].function.arguments) == ARGUMENTS
    with sdk.chat.completions.stream(model="test/echo", messages=USER, tools=TOOLS) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in events
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls
    assert json.loads(final.message.tool_calls[0].function.arguments) == ARGUMENTS


def function(**fields: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "f", **fields}}]


def calling(arguments: str | None) -> list[Any]:
    return [{"id": "c", "function": {"name": "f", "arguments": arguments}}]


BAD_TOOLS: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": {}}, "tools", "invalid_value"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools", "invalid_value"),
    ({"tools": [{"type": "function"}]}, "tools", "invalid_value"),
    ({"tools": function(name="a b")}, "tools", "invalid_value"),
    ({"tools": function(name="x" * 65)}, "tools", "invalid_value"),
    ({"tools": function() * 2}, "tools", "invalid_value"),
    ({"tools": function() * 129}, "tools", "invalid_value"),
    ({"tools": function(parameters=[])}, "tools", "invalid_value"),
    ({"tools": function(parameters={"type": "array"})}, "tools", "invalid_value"),
    ({"tools": function(parameters={"properties": []})}, "tools", "invalid_value"),
    ({"tools": function(parameters={"properties": {"a": 1}})}, "tools", "invalid_value"),
    ({"tools": function(parameters={"properties": {"a": {"type": "text"}}})}, "tools", "invalid_value"),
    ({"tools": function(parameters={"required": "a"})}, "tools", "invalid_value"),
    ({"tools": function(parameters={"properties": {"a": {"items": 1}}})}, "tools", "invalid_value"),
    ({"tools": function(parameters={"anyOf": {}})}, "tools", "invalid_value"),
    ({"tools": function(parameters=json.loads('{"properties":{"a":' * 40 + "{}" + "}}" * 40))}, "tools", "invalid_value"),
    ({"tools": [{"type": "web_search"}]}, "tools", "unsupported_parameter"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "invalid_value"),
    ({"tool_choice": "some"}, "tool_choice", "invalid_value"),
    ({"messages": [{"role": "user", "content": "a", "tool_calls": calling("{}")}]}, "messages", "invalid_value"),
    ({"messages": [{"role": "assistant", "tool_calls": calling("[]")}]}, "messages", "invalid_value"),
    ({"messages": [{"role": "assistant", "tool_calls": calling("{")}]}, "messages", "invalid_value"),
    ({"messages": [{"role": "assistant", "tool_calls": calling(None)}]}, "messages", "invalid_value"),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": []}]}, "messages", "invalid_value"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "invalid_value"),
]


@pytest.mark.parametrize(("fields", "param", "code"), BAD_TOOLS)
def test_bad_tools_are_400(server: TestServer, fields: dict[str, Any], param: str, code: str) -> None:
    answer = server.client.post(CHAT, json={"messages": USER, **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code)


def test_what_asks_for_nothing_is_accepted(server: TestServer) -> None:
    scripted(server, "ok")
    assert ask(server, tools=function(strict=False, parameters={}), parallel_tool_calls=True)["message"]["content"] == "ok"
    assert ask(server, tools=[], tool_choice="none")["message"]["content"] == "ok"
    assert ask(server, tools=function(description=None, parameters=None))["message"]["content"] == "ok"
