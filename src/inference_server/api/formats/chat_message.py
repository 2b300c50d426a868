"""What an assistant says in a chat: text, thoughts and tool calls, as one message and as the `delta` of a chunk."""

from collections.abc import Sequence
from typing import Any

from inference_server.core.outputs import CallState, OutputDelta, ToolCallDelta


def whole_message(result: OutputDelta) -> dict[str, Any]:
    """The message of a whole answer. `content` is null where there are only tool calls."""
    message: dict[str, Any] = {"role": "assistant", "content": result.text, "refusal": None}
    if result.reasoning:
        message["reasoning_content"] = result.reasoning
    if calls := [call for call in result.tool_calls if call.state is CallState.COMPLETE]:
        message["content"] = result.text or None
        message["tool_calls"] = [{"id": call.id, "type": "function", "function": _function(call)} for call in calls]
    return message


class CallPieces:
    """The tool calls of one streamed choice, numbered in the order in which the client sees them."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def delta(self, pieces: Sequence[ToolCallDelta]) -> dict[str, Any]:
        """The delta of a chunk with these pieces; empty for pieces of which a client sees nothing."""
        calls = [self._call(piece) for piece in pieces if piece.state is not CallState.BROKEN]
        return {"tool_calls": calls} if calls else {}

    def _call(self, piece: ToolCallDelta) -> dict[str, Any]:
        if not piece.name:
            return {"index": self._numbers[piece.index], "function": {"arguments": piece.arguments}}
        number = self._numbers[piece.index] = len(self._numbers)
        return {"index": number, "id": piece.id, "type": "function", "function": _function(piece)}


def _function(call: ToolCallDelta) -> dict[str, str]:
    return {"name": call.name, "arguments": call.arguments}
