"""OpenAI's chat completions and completions.

Most chunks of a stream differ in a text only, so the rest is encoded once and a delta costs one string encoding.
"""

from typing import Any

from inference_server.api.formats.base import encode, event, openai_usage
from inference_server.core.outputs import CallState, OutputDelta, ToolCallDelta

_SLOT = "\0"
_ENCODED_SLOT = encode(_SLOT)


class OpenAIFormat:
    """What both shapes share. include_usage: one last chunk with the usage and no choices, and `usage: null` on all others."""

    whole_object: str
    chunk_object: str

    def __init__(self, response_id: str, model: str, created: int, include_usage: bool) -> None:
        self._envelope: dict[str, Any] = {"id": response_id, "object": self.whole_object, "created": created, "model": model}
        self._include_usage = include_usage
        self._text_chunk = self._around_slot(self.text_choice(_SLOT))

    def text_choice(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def final_choice(self, finish_reason: str) -> dict[str, Any]:
        raise NotImplementedError

    def whole_choice(self, result: OutputDelta) -> dict[str, Any]:
        raise NotImplementedError

    def body(self, result: OutputDelta) -> bytes:
        assert result.usage is not None
        choice = self.whole_choice(result)
        return encode({**self._envelope, "choices": [choice], "usage": openai_usage(result.usage)})

    def content(self, delta: OutputDelta) -> bytes:
        """The chunks of what is new in the answer."""
        return _fill(self._text_chunk, delta.text) if delta.text else b""

    def events(self, delta: OutputDelta) -> bytes:
        out = self.content(delta)
        if delta.finish_reason is None:
            return out
        assert delta.usage is not None
        out += self._chunk(self.final_choice(delta.finish_reason))
        if self._include_usage:
            out += event(encode({**self._envelope, "object": self.chunk_object, "choices": [], "usage": openai_usage(delta.usage)}))
        return out

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        usage = {"usage": None} if self._include_usage else {}
        return event(encode({**self._envelope, "object": self.chunk_object, "choices": [choice], **usage}))

    def _around_slot(self, choice: dict[str, Any]) -> tuple[bytes, bytes]:
        prefix, suffix = self._chunk(choice).split(_ENCODED_SLOT)
        return prefix, suffix


class CompletionFormat(OpenAIFormat):
    """`/v1/completions`."""

    whole_object = chunk_object = "text_completion"

    def text_choice(self, text: str) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": None}

    def final_choice(self, finish_reason: str) -> dict[str, Any]:
        return {"index": 0, "text": "", "logprobs": None, "finish_reason": finish_reason}

    def whole_choice(self, result: OutputDelta) -> dict[str, Any]:
        return {"index": 0, "text": result.text, "logprobs": None, "finish_reason": result.finish_reason}


class ChatFormat(OpenAIFormat):
    """`/v1/chat/completions`. The first chunk of a stream says who speaks; `content` is null where there are only tool calls."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, response_id: str, model: str, created: int, include_usage: bool) -> None:
        super().__init__(response_id, model, created, include_usage)
        self._started = False
        self._reasoning_chunk = self._around_slot(_chat_choice({"reasoning_content": _SLOT}))
        self._call_numbers: dict[int, int] = {}

    def content(self, delta: OutputDelta) -> bytes:
        out = super().content(delta)
        if delta.reasoning:
            out = _fill(self._reasoning_chunk, delta.reasoning) + out
        if calls := [self._call(piece) for piece in delta.tool_calls if piece.state is not CallState.BROKEN]:
            out += self._chunk(_chat_choice({"tool_calls": calls}))
        return out

    def events(self, delta: OutputDelta) -> bytes:
        out = super().events(delta)
        if self._started:
            return out
        self._started = True
        return self._chunk(_chat_choice({"role": "assistant", "content": "", "refusal": None})) + out

    def text_choice(self, text: str) -> dict[str, Any]:
        return _chat_choice({"content": text})

    def final_choice(self, finish_reason: str) -> dict[str, Any]:
        return _chat_choice({}, finish_reason)

    def whole_choice(self, result: OutputDelta) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": result.text, "refusal": None}
        if result.reasoning:
            message["reasoning_content"] = result.reasoning
        if calls := [call for call in result.tool_calls if call.state is CallState.COMPLETE]:
            message["content"] = result.text or None
            message["tool_calls"] = [{"id": call.id, "type": "function", "function": _function(call)} for call in calls]
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": result.finish_reason}

    def _call(self, piece: ToolCallDelta) -> dict[str, Any]:
        """Calls are numbered in the order in which the client sees them; one that broke before it was sent has no number."""
        if not piece.name:
            return {"index": self._call_numbers[piece.index], "function": {"arguments": piece.arguments}}
        number = self._call_numbers[piece.index] = len(self._call_numbers)
        return {"index": number, "id": piece.id, "type": "function", "function": _function(piece)}


def _chat_choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _function(call: ToolCallDelta) -> dict[str, str]:
    return {"name": call.name, "arguments": call.arguments}


def _fill(around: tuple[bytes, bytes], text: str) -> bytes:
    return around[0] + encode(text) + around[1]
