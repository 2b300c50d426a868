"""OpenAI's chat completions and completions.

Most chunks of a stream differ in a text only, so the rest is encoded once and a delta costs one string encoding.
"""

from typing import Any

from inference_server.api.formats.base import DataEvents, encode, event, openai_usage
from inference_server.api.formats.chat_message import CallPieces, whole_message
from inference_server.core.outputs import OutputDelta

_SLOT = "\0"
_ENCODED_SLOT = encode(_SLOT)


class OpenAIFormat(DataEvents):
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
    """`/v1/chat/completions`. The first chunk of a stream says who speaks."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, response_id: str, model: str, created: int, include_usage: bool) -> None:
        super().__init__(response_id, model, created, include_usage)
        self._started = False
        self._reasoning_chunk = self._around_slot(_chat_choice({"reasoning_content": _SLOT}))
        self._calls = CallPieces()

    def content(self, delta: OutputDelta) -> bytes:
        out = super().content(delta)
        if delta.reasoning:
            out = _fill(self._reasoning_chunk, delta.reasoning) + out
        if delta.tool_calls and (calls := self._calls.delta(delta.tool_calls)):
            out += self._chunk(_chat_choice(calls))
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
        return {"index": 0, "message": whole_message(result), "logprobs": None, "finish_reason": result.finish_reason}


def _chat_choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _fill(around: tuple[bytes, bytes], text: str) -> bytes:
    return around[0] + encode(text) + around[1]
