"""Tool calls in the chunks of a chat, also if a slow reader gets several deltas as one."""

import json
from typing import Any

from inference_server.api.formats.openai import ChatFormat
from inference_server.core.outputs import CallState, OutputDelta, ToolCallDelta


def deltas(chat: ChatFormat, delta: OutputDelta) -> list[dict[str, Any]]:
    blocks = chat.events(delta).decode().split("\n\n")[:-1]
    return [json.loads(block.removeprefix("data: "))["choices"][0]["delta"] for block in blocks]


def test_the_parts_of_a_delta_in_order() -> None:
    chat = ChatFormat("id", "m", 1, False, 1, [None])
    piece = ToolCallDelta(0, "call_1", "f", "{")
    assert deltas(chat, OutputDelta("text", "thought", (piece,)))[1:] == [
        {"reasoning_content": "thought"},
        {"content": "text"},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{"}}]},
    ]
    assert deltas(chat, OutputDelta(tool_calls=(ToolCallDelta(0, arguments="}", state=CallState.COMPLETE),))) == [
        {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}
    ]


def test_a_call_that_broke_unseen_takes_no_number() -> None:
    chat = ChatFormat("id", "m", 1, False, 1, [None])
    broken = ToolCallDelta(0, state=CallState.BROKEN)
    assert deltas(chat, OutputDelta("markup", tool_calls=(broken,)))[1:] == [{"content": "markup"}]
    (chunk,) = deltas(chat, OutputDelta(tool_calls=(ToolCallDelta(1, "call_2", "g", "{}", CallState.COMPLETE),)))
    assert chunk["tool_calls"][0]["index"] == 0
