"""What is wrong with an answer: its status, its error shape, how often each choice ends, and, on the fake model, its tokens."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from raw_http import Answer

from inference_server.backends.fake_backend import FULL_AND_WINDOW, expected_tokens

ALLOWED = frozenset({200, 400, 404, 405, 408, 409, 413, 414, 429, 431, 503, 504})
WINDOWS = [group.window for group in FULL_AND_WINDOW]


def problems(path: str, body: Any, answer: Answer, fake: bool) -> Iterator[str]:
    """What is wrong with the answer; nothing if it is as it should be. body: the request's; None if it makes no sense."""
    if answer.status == 500:
        if answer.json()["error"]["code"] != "step_failed":
            yield f"a 500 that was not injected: {answer.body!r}"
        return
    if answer.status not in ALLOWED:
        yield f"status {answer.status}: {answer.body!r}"
    if answer.status >= 400:
        if set(answer.json()["error"]) != {"message", "type", "param", "code"}:
            yield f"not the error shape: {answer.body!r}"
        if answer.status in (429, 503) and "retry-after" not in answer.headers:
            yield f"{answer.status} without Retry-After"
        return
    if not isinstance(body, dict):
        return
    if body.get("stream"):
        yield from _stream_problems(path, body.get("n", 1), answer.body)
    elif fake and path == "/v1/completions" and "structured_outputs" not in body:
        yield from _wrong_tokens(body, answer.json()["choices"])


def _stream_problems(path: str, num_choices: int, raw: bytes) -> Iterator[str]:
    events = [event for event in raw.decode("ascii").split("\n\n") if event and not event.startswith(":")]
    if path != "/v1/responses" and (events.pop() if events else "") != "data: [DONE]":
        yield f"a stream without its end: {raw[-300:]!r}"
        return
    payloads = [json.loads(event.partition("data: ")[2]) for event in events]
    ends = Counter(end for payload in payloads for end in _ends(payload))
    expected = {"error"}, {str(index) for index in range(num_choices)}
    if not (ends["error"] == 1 or (set(ends) == expected[1] and set(ends.values()) == {1})):
        yield f"{num_choices} choices ended as {dict(ends)}"


def _ends(payload: dict[str, Any]) -> Iterator[str]:
    """The index of each choice that this event ends; `error` for one that ends them all."""
    if "error" in payload and "type" not in payload:
        yield "error"
    if payload.get("done") or payload.get("type") in ("response.completed", "response.incomplete"):
        yield "0"
    if payload.get("type") == "response.failed":
        yield "error"
    yield from (str(choice["index"]) for choice in payload.get("choices", ()) if choice["finish_reason"] is not None)


def _wrong_tokens(body: dict[str, Any], choices: list[dict[str, Any]]) -> Iterator[str]:
    prompt = body["prompt"]
    for choice in choices:
        got = choice["text"].encode()
        wanted = bytes(expected_tokens(prompt, len(got), WINDOWS))
        if got != wanted or choice["finish_reason"] not in ("length", "timeout"):
            yield f"wrong tokens after {len(prompt)}: {got!r}, not {wanted!r}"
