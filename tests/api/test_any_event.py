"""Any text, cut into any pieces, makes well-formed events that join to the text, in every format."""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_server.api.formats.base import ResponseFormat
from inference_server.api.formats.native import NativeFormat
from inference_server.api.formats.openai import ChatFormat, CompletionFormat
from inference_server.api.formats.responses import ResponsesFormat
from inference_server.core.outputs import OutputDelta, Usage
from inference_server.core.request import FinishReason

PIECE = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\0\r\n\u2028\u2029\x85"\\:{}'), max_size=8)


def formats() -> list[ResponseFormat]:
    return [
        NativeFormat("id", 0.0, lambda: 1.0),
        CompletionFormat("id", 'a "model"\n', 1, True, 1, [None]),
        ChatFormat("id", "model", 1, False, 1, [None]),
        ResponsesFormat("id", {"created_at": 1, "model": "model"}),
    ]


def payloads(raw: bytes) -> list[Any]:
    """The payloads of a stream, by the rules of server-sent events, which know three kinds of line ends."""
    assert raw.endswith(b"\n\n")
    text = raw.decode("ascii")
    assert "\r" not in text
    blocks = [block.split("\n") for block in text[:-2].split("\n\n")]
    assert all(line.startswith(("data: ", "event: ")) for block in blocks for line in block)
    data = [line.removeprefix("data: ") for block in blocks for line in block if line.startswith("data: ")]
    assert len(data) == len(blocks)
    return [json.loads(each) for each in data if each != "[DONE]"]


def said(payload: dict[str, Any]) -> tuple[str, str]:
    """The text and the thought in one event."""
    if "choices" in payload:
        choice = payload["choices"][0] if payload["choices"] else {}
        delta = choice.get("delta", {})
        return delta.get("content") or choice.get("text", ""), delta.get("reasoning_content", "")
    kind = payload.get("type", "")
    if kind:
        return (payload["delta"] if kind == "response.output_text.delta" else ""), (
            payload["delta"] if kind == "response.reasoning_text.delta" else ""
        )
    return payload.get("text", ""), payload.get("reasoning_content", "")


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(PIECE, st.just("") | PIECE), min_size=1, max_size=6))
def test_events_join_to_the_text(pieces: Sequence[tuple[str, str]]) -> None:
    usage = Usage(1, 1, 0, 0.1, 0.2)
    for each in formats():
        thoughts = not isinstance(each, CompletionFormat)
        deltas = [OutputDelta(text=text, reasoning=thought if thoughts else "") for text, thought in pieces]
        deltas[-1].finish_reason, deltas[-1].usage = FinishReason.STOP, usage
        events = payloads(b"".join(each.events(delta) for delta in deltas) + each.end)
        texts, reasonings = zip(*map(said, events), strict=True)
        assert "".join(texts) == "".join(text for text, _ in pieces)
        assert "".join(reasonings) == ("".join(thought for _, thought in pieces) if thoughts else "")
