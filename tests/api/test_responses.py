"""`/v1/responses` through the official client and byte by byte: items whole and as events, and what it refuses."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from api_server import TestServer, running
from dialect_model import ScriptedBackend, load_dialect, scripted
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from inference_server.api.formats.responses import ResponsesFormat
from inference_server.core.outputs import CallState, OutputDelta, ToolCallDelta, Usage
from inference_server.core.request import FinishReason

PATH = "/v1/responses"
THOUGHT = "Hm. 🙂"
CALL = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
ANSWER = f"<|channel>thought\n{THOUGHT}<channel|>I look.{CALL}{CALL}"
TOOLS: list[Any] = [{"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}, "strict": None}]
ARGUMENTS = {"city": "Paris"}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with running(ScriptedBackend(), load_model=load_dialect) as test_server:
        yield test_server


def whole(server: TestServer, **fields: Any) -> dict[str, Any]:
    answer = server.client.post(PATH, json={"input": "Hi", **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    Response.model_validate(body, strict=True)
    return body


def events_of(server: TestServer, **fields: Any) -> list[dict[str, Any]]:
    answer = server.client.post(PATH, json={"input": "Hi", "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    return parsed(answer.content)


def parsed(raw: bytes) -> list[dict[str, Any]]:
    """The events of a stream. Checks framing, names and numbers strictly, and each event by the client's own types."""
    blocks = raw.decode("ascii").split("\n\n")
    assert blocks.pop() == ""
    events = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        EVENTS.validate_python(event)
        events.append(event)
    return events


def without_ids(output: Any) -> Any:
    return json.loads(json.dumps(output), object_hook=lambda o: {k: v for k, v in o.items() if k not in ("id", "call_id")})


def test_a_text(server: TestServer) -> None:
    backend = scripted(server, "Hello é.")
    body = whole(server, instructions="Be kind.", max_output_tokens=50, metadata={"a": "b"}, store=True)
    assert backend.prompts == ["<bos><|turn>system\nBe kind.<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n"]
    (item,) = body["output"]
    assert body["id"].startswith("resp_")
    assert item.pop("id").startswith("msg_")
    part = {"type": "output_text", "text": "Hello é.", "annotations": [], "logprobs": []}
    assert item == {"type": "message", "status": "completed", "role": "assistant", "content": [part]}
    assert (body["object"], body["status"], body["error"], body["incomplete_details"]) == ("response", "completed", None, None)
    assert (body["metadata"], body["store"], body["previous_response_id"]) == ({"a": "b"}, False, None)
    assert body["usage"]["output_tokens"] == len("Hello é.".encode()) + 1
    assert body["usage"]["total_tokens"] == body["usage"]["input_tokens"] + body["usage"]["output_tokens"]


def test_the_events_of_a_text_in_order(server: TestServer) -> None:
    scripted(server, "Hello")
    events = events_of(server)
    kinds = [event["type"].removeprefix("response.") for event in events]
    start, end = ["created", "in_progress", "output_item.added", "content_part.added"], ["output_text.done", "content_part.done"]
    num_deltas = kinds.count("output_text.delta")
    assert 1 <= num_deltas <= 5
    assert kinds == start + ["output_text.delta"] * num_deltas + [*end, "output_item.done", "completed"]
    assert {event["item_id"] for event in events if "item_id" in event} == {events[2]["item"]["id"]}
    assert events[2]["item"]["content"] == []
    assert "".join(event.get("delta", "") for event in events) == events[-4]["text"] == "Hello"
    assert events[0]["response"]["status"] == events[1]["response"]["status"] == "in_progress"
    final = events[-1]["response"]
    assert final["output"] == [events[-2]["item"]]
    assert without_ids({**final, "created_at": 0}) == without_ids({**whole(server), "created_at": 0})


def test_thoughts_text_and_calls_are_items(server: TestServer) -> None:
    scripted(server, ANSWER)
    body = whole(server, tools=TOOLS, reasoning={"effort": "low"})
    thought, message, *calls = body["output"]
    assert (thought["type"], thought["content"]) == ("reasoning", [{"type": "reasoning_text", "text": THOUGHT}])
    assert message["content"][0]["text"] == "I look."
    assert [(call["type"], call["name"], json.loads(call["arguments"])) for call in calls] == [
        ("function_call", "get_weather", ARGUMENTS)
    ] * 2
    assert len({call["call_id"] for call in calls}) == 2
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    events = events_of(server, tools=TOOLS, reasoning={"effort": "low"})
    added = [event["item"]["type"] for event in events if event["type"] == "response.output_item.added"]
    assert added == ["reasoning", "message", "function_call", "function_call"]
    for index, item in enumerate(events[-1]["response"]["output"]):
        own = [event for event in events if event.get("output_index") == index]
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert "".join(event.get("delta", "") for event in own) == text
        assert own[-1]["type"] == "response.output_item.done"
        assert own[-1]["item"] == item
    assert without_ids(events[-1]["response"]["output"]) == without_ids(body["output"])


def test_a_call_that_breaks_is_text(server: TestServer) -> None:
    scripted(server, CALL[:-1])
    (only,) = whole(server, tools=TOOLS)["output"]
    assert only["content"][0]["text"] == CALL[:-1]


KNOWN = {"created_at": 1, "model": "m", "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
OPENED = OutputDelta(tool_calls=(ToolCallDelta(0, "call_1", "f", "{"),))
USAGE = Usage(prompt_tokens=2, completion_tokens=3, cached_tokens=1, ttft_s=0.1, total_s=0.2, reasoning_tokens=1)


@pytest.mark.parametrize(
    ("piece", "status", "arguments"),
    [
        (ToolCallDelta(0, arguments="}", state=CallState.COMPLETE), "completed", "{}"),
        (ToolCallDelta(0, state=CallState.BROKEN), "incomplete", "{"),
    ],
)
def test_an_open_call_ends_before_the_text_after_it(piece: ToolCallDelta, status: str, arguments: str) -> None:
    """Also if a slow reader gets both in one delta, together with the next call."""
    response = ResponsesFormat("r", KNOWN)
    ended = OutputDelta("text", tool_calls=(piece, ToolCallDelta(1, "call_2", "g", "{}", CallState.COMPLETE)))
    ended.finish_reason, ended.usage = FinishReason.TOOL_CALLS, USAGE
    final = parsed(response.events(OPENED) + response.events(ended))[-1]["response"]
    first, message, second = final["output"]
    assert (first["status"], first["arguments"], message["content"][0]["text"]) == (status, arguments, "text")
    assert (second["name"], second["status"], second["arguments"]) == ("g", "completed", "{}")
    assert final["usage"] == {
        "input_tokens": 2,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 5,
    }


def test_of_a_call_that_broke_unseen_nothing_shows() -> None:
    response = ResponsesFormat("r", KNOWN)
    broken = OutputDelta("text", tool_calls=(ToolCallDelta(0, state=CallState.BROKEN),))
    kinds = [event["type"] for event in parsed(response.events(broken))]
    assert kinds[2:] == ["response.output_item.added", "response.content_part.added", "response.output_text.delta"]


def test_what_is_cut_is_incomplete(server: TestServer) -> None:
    scripted(server, "Hello")
    body = whole(server, max_output_tokens=2)
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (body["output"][0]["status"], body["output"][0]["content"][0]["text"]) == ("incomplete", "He")
    assert events_of(server, max_output_tokens=2)[-1]["type"] == "response.incomplete"


def test_an_error_after_text_is_a_failed_response() -> None:
    backend = ScriptedBackend(step_s=0.01, answer="x" * 200)
    with running(backend, load_model=load_dialect) as server:
        raw = b""
        with server.client.stream("POST", PATH, json={"input": "Hi", "stream": True}) as answer:
            for block in answer.iter_raw():
                raw += block
                backend.failing = b"output_text.delta" in raw
        name, data = raw.decode().removesuffix("\n\n").rpartition("\n\n")[2].split("\n")
        event = json.loads(data.removeprefix("data: "))
        EVENTS.validate_python(event)
        assert name == "event: response.failed"
        assert event["response"]["status"] == "failed"
        assert event["response"]["error"]["code"] == "server_error"
        assert b"secret" not in raw


def test_the_openai_client(server: TestServer, sdk: openai.OpenAI) -> None:
    backend = scripted(server, ANSWER)
    answer = sdk.responses.create(model="test/echo", input="Weather?", tools=TOOLS, reasoning={"effort": "low"})
    assert "<|think|>" in backend.prompts[0]
    assert answer.output_text == "I look."
    calls = [item for item in answer.output if item.type == "function_call"]
    results: list[Any] = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    question: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}]
    scripted(server, "Sunny.")
    final = sdk.responses.create(model="test/echo", input=[*question, *answer.output, *results], tools=TOOLS)  # type: ignore[list-item]
    assert final.output_text == "Sunny."
    assert f"Weather?<turn|>\n<|turn>model\nI look.{CALL}{CALL}<|tool_response>response:{calls[0].call_id}" in backend.prompts[0]


def test_the_openai_client_streams(server: TestServer, sdk: openai.OpenAI) -> None:
    scripted(server, "Hello")
    events = list(sdk.responses.create(model="test/echo", input="Hi", stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello"
    with sdk.responses.stream(model="test/echo", input="Hi") as stream:
        assert stream.get_final_response().output_text == "Hello"


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"input": ""}, "input", "invalid_value"),
    ({"input": []}, "input", "invalid_value"),
    ({"input": 5}, "input", "invalid_value"),
    ({"input": None}, "input", "invalid_value"),
    ({"input": [{"role": "robot", "content": "a"}]}, "input", "invalid_value"),
    ({"input": [{"type": 5}]}, "input", "invalid_value"),
    ({"input": ["a"]}, "input", "invalid_value"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "["}]}, "input", "invalid_value"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "unsupported_parameter"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input", "unsupported_parameter"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
    ({"conversation": "c"}, "conversation", "unsupported_parameter"),
    ({"background": True}, "background", "unsupported_parameter"),
    ({"include": ["reasoning.encrypted_content"]}, "include", "unsupported_parameter"),
    ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
    ({"text": {"format": {"type": "json_object"}}}, "text", "unsupported_parameter"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {}}}}, "text", "unsupported_parameter"),
    ({"tools": [{"type": "web_search"}]}, "tools", "unsupported_parameter"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools", "invalid_value"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
]


@pytest.mark.parametrize(("fields", "param", "code"), BAD)
def test_bad_requests_are_400(url: str, fields: dict[str, Any], param: str, code: str) -> None:
    answer = httpx.post(f"{url}{PATH}", json={"input": "Hi", **fields}, trust_env=False)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert "()" not in error["message"], "no name of ours says anything to a client"


def test_what_asks_for_nothing_is_accepted(server: TestServer) -> None:
    scripted(server, "ok")
    neutral = {"previous_response_id": None, "include": [], "truncation": "disabled", "background": False, "store": False, "user": "u"}
    assert whole(server, **neutral, text={"format": {"type": "text"}, "verbosity": "medium"})["status"] == "completed"
