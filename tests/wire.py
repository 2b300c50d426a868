"""What every streamed generation of this API looks like on the wire, checked byte by byte.

A check takes a plain `httpx.Client` with a server's base URL, and the body of a request. So it knows neither the model nor who answers:
one process, or a fleet behind a router. It fails by an assertion, and returns what was said.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import httpx

CHAT, TEXT, RESPONSES, NATIVE = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate"
CONSTANT = ("id", "object", "created", "model")
COUNTS = {
    RESPONSES: ("input_tokens", "output_tokens"),
    NATIVE: ("prompt_tokens", "tokens_generated"),
    CHAT: ("prompt_tokens", "completion_tokens"),
    TEXT: ("prompt_tokens", "completion_tokens"),
}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Said:
    """One choice. calls: name and arguments of each. end: why it ended, in the route's own word."""

    text: str
    end: str
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """All choices, and the numbers of tokens of prompt and answer; None if the client did not ask for them."""

    choices: tuple[Said, ...]
    counts: tuple[int, int] | None


def streamed(client: httpx.Client, path: str, body: Json) -> Answer:
    """Ask for a stream and check it strictly."""
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        raw = b"".join(response.iter_raw())
    assert response.status_code == 200, raw
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    match path:
        case "/v1/responses":
            return read_response(raw)
        case "/generate":
            return read_native(raw)
    return read_choices(raw, path == CHAT, body)


def whole(client: httpx.Client, path: str, body: Json) -> Answer:
    """Ask for the same without a stream."""
    response = client.post(path, json={key: value for key, value in body.items() if key != "stream_options"})
    assert response.status_code == 200, response.text
    answer = strict_json(response.text)
    match path:
        case "/v1/responses":
            return _of_response(answer)
        case "/generate":
            return Answer((_of_native(answer),), _counts(answer, path))
        case "/v1/completions":
            said = tuple(Said(choice["text"], choice["finish_reason"]) for choice in answer["choices"])
        case _:
            said = tuple(_of_message(choice["message"], choice["finish_reason"]) for choice in answer["choices"])
    return Answer(said, _counts(answer["usage"], path))


def events_of(raw: bytes) -> list[tuple[str, str]]:
    """Name and data of each event. Checks every byte: a line for each field, an empty line after each event, and no comments but pings."""
    text = raw.decode("ascii")
    assert text.endswith("\n\n")
    events = []
    for block in text[:-2].split("\n\n"):
        if block == ": ping":
            continue
        *names, data = block.split("\n")
        assert len(names) <= 1
        assert all(name.startswith("event: ") for name in names)
        assert data.startswith("data: ")
        events.append((names[0].removeprefix("event: ") if names else "", data.removeprefix("data: ")))
    return events


def parse_sse(raw: bytes) -> list[Any]:
    """The payloads of a stream of unnamed events: objects, then `[DONE]` and nothing more."""
    events = events_of(raw)
    assert events.pop() == ("", "[DONE]")
    assert not any(name for name, _ in events)
    return [strict_json(data) for _, data in events]


def strict_json(text: str) -> Json:
    """Parse an object strictly, without what Python's parser accepts beyond JSON."""
    value = json.loads(text, parse_constant=_refuse)
    assert isinstance(value, dict)
    return value


def read_choices(raw: bytes, is_chat: bool, body: Json) -> Answer:
    """Read a stream of chunks: ids are constant, each choice is in order, and the usage, if wanted, comes exactly once, alone and last."""
    chunks = parse_sse(raw)
    options = body.get("stream_options") or {}
    assert len({json.dumps([chunk[key] for key in CONSTANT]) for chunk in chunks}) == 1
    assert chunks[0]["object"] == ("chat.completion.chunk" if is_chat else "text_completion")
    counts = None
    if options.get("include_usage"):
        last = chunks.pop()
        assert last["choices"] == []
        counts = _counts(last["usage"], CHAT)
        assert all("usage" in chunk for chunk in chunks)
        if not options.get("continuous_usage_stats"):
            assert not any(chunk["usage"] for chunk in chunks)
    else:
        assert not any("usage" in chunk for chunk in chunks)
    pieces: dict[int, list[Json]] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        pieces.setdefault(choice["index"], []).append(choice)
    assert sorted(pieces) == list(range(len(pieces)))
    read = _chat_choice if is_chat else _text_choice
    return Answer(tuple(read(pieces[index]) for index in range(len(pieces))), counts)


def read_native(raw: bytes) -> Answer:
    """Read a stream of /generate: `{text, ttft_ms}`, `{text}`..., then the totals; thoughts come as `{reasoning_content}`."""
    *events, last = parse_sse(raw)
    texts = [event for event in events if "text" in event]
    assert [set(event) for event in texts] == [{"text", "ttft_ms"}, *[{"text"}] * (len(texts) - 1)][: len(texts)]
    assert all(set(event) == {"reasoning_content"} for event in events if "text" not in event)
    assert all(value for event in events for value in event.values())
    assert (last["text"], last["done"]) == ("", True)
    assert 0 < last["ttft_ms"] <= last["total_ms"]
    reasoning = "".join(event.get("reasoning_content", "") for event in events)
    said = Said("".join(event["text"] for event in texts), last["finish_reason"], reasoning)
    return Answer((said,), _counts(last, NATIVE))


def read_response(raw: bytes) -> Answer:
    """Read numbered and named events in the documented order. Item for item, they say what the last event holds as a whole."""
    events = []
    for number, (name, data) in enumerate(events_of(raw)):
        event = strict_json(data)
        assert (event["type"], event["sequence_number"]) == (name, number)
        events.append(event)
    created, begun, *middle, last = events
    assert [created["type"], begun["type"]] == ["response.created", "response.in_progress"]
    for event in (created, begun):
        assert (event["response"]["status"], event["response"]["output"]) == ("in_progress", [])
    final = last["response"]
    assert last["type"] == f"response.{final['status']}"
    assert {created["response"]["id"], begun["response"]["id"]} == {final["id"]}
    for index, item in enumerate(final["output"]):
        own = [event for event in middle if event["output_index"] == index]
        assert own == middle[: len(own)], "an item is closed before the next one opens"
        _check_item(own, item)
        middle = middle[len(own) :]
    assert not middle
    return _of_response(final)


def _check_item(events: Sequence[Json], item: Json) -> None:
    kinds = [event["type"].removeprefix("response.") for event in events]
    text = "".join(event.get("delta", "") for event in events)
    if item["type"] == "function_call":
        delta, around = "function_call_arguments", ([], [])
        assert item["arguments"] == text
    else:
        delta = "output_text" if item["type"] == "message" else "reasoning_text"
        around = ["content_part.added"], ["content_part.done"]
        assert [part["text"] for part in item["content"]] == [text]
    num_deltas = kinds.count(f"{delta}.delta")
    assert kinds == [
        "output_item.added",
        *around[0],
        *[f"{delta}.delta"] * num_deltas,
        f"{delta}.done",
        *around[1],
        "output_item.done",
    ]
    assert events[-1]["item"] == item
    assert {event["item_id"] for event in events if "item_id" in event} <= {item["id"]} == {events[0]["item"]["id"]}


def _text_choice(pieces: Sequence[Json]) -> Said:
    return Said("".join(piece["text"] for piece in pieces), _end(pieces))


def _chat_choice(pieces: Sequence[Json]) -> Said:
    """Join a choice of a chat. The role comes first and once; the closing piece is last and says nothing; a call's first piece names it."""
    first, *deltas, last = (piece["delta"] for piece in pieces)
    assert first == {"role": "assistant", "content": "", "refusal": None}
    assert last == {}
    assert all(set(delta) <= {"content", "reasoning_content", "tool_calls"} for delta in deltas)
    calls: list[list[str]] = []
    for call in (call for delta in deltas for call in delta.get("tool_calls", [])):
        if call["index"] == len(calls):
            assert call["id"] and call["type"] == "function" and call["function"]["name"]
            calls.append([call["function"]["name"], ""])
        else:
            assert set(call) == {"index", "function"}
            assert set(call["function"]) == {"arguments"}
        calls[call["index"]][1] += call["function"]["arguments"]
    text, reasoning = ("".join(delta.get(key, "") for delta in deltas) for key in ("content", "reasoning_content"))
    return Said(text, _end(pieces), reasoning, tuple((name, arguments) for name, arguments in calls))


def _end(pieces: Sequence[Json]) -> str:
    """The finish reason, which only the last piece has."""
    *before, last = (piece["finish_reason"] for piece in pieces)
    assert not any(before)
    assert isinstance(last, str)
    return last


def _of_message(message: Json, end: str) -> Said:
    functions = [call["function"] for call in message.get("tool_calls", [])]
    calls = tuple((function["name"], function["arguments"]) for function in functions)
    return Said(message["content"] or "", end, message.get("reasoning_content", ""), calls)


def _of_native(answer: Json) -> Said:
    return Said(answer["text"], answer["finish_reason"], answer.get("reasoning_content", ""))


def _of_response(response: Json) -> Answer:
    def text(kind: str) -> str:
        return "".join(part["text"] for item in response["output"] if item["type"] == kind for part in item["content"])

    calls = tuple((item["name"], item["arguments"]) for item in response["output"] if item["type"] == "function_call")
    end = response["incomplete_details"]["reason"] if response["incomplete_details"] else response["status"]
    return Answer((Said(text("message"), end, text("reasoning"), calls),), _counts(response["usage"], RESPONSES))


def _counts(usage: Json, path: str) -> tuple[int, int]:
    prompt, answer = COUNTS[path]
    return usage[prompt], usage[answer]


def _refuse(name: str) -> NoReturn:
    raise AssertionError(f"{name} is no JSON")
