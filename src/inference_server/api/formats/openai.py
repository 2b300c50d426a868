"""OpenAI's chat completions and completions.

The chunks of a stream differ in a text and a finish reason only, so the rest is encoded once and a delta costs one string encoding.
"""

from typing import Any

from inference_server.api.formats.base import encode, event, openai_usage
from inference_server.api.formats.token_details import TokenDetails
from inference_server.core.outputs import OutputDelta

_SLOT = "\0"
_ENCODED_SLOT = encode(_SLOT)


class OpenAIFormat:
    """What both shapes share. include_usage: one last chunk with the usage and no choices, and `usage: null` on all others.

    details: what to say about single tokens, None for requests that did not ask.
    """

    whole_object: str
    chunk_object: str

    def __init__(self, response_id: str, model: str, created: int, include_usage: bool, details: TokenDetails | None = None) -> None:
        self._details = details
        self._envelope: dict[str, Any] = {"id": response_id, "object": self.whole_object, "created": created, "model": model}
        self._include_usage = include_usage
        self._text_prefix, self._text_suffix = self._chunk(self.text_choice(_SLOT)).split(_ENCODED_SLOT)

    def text_choice(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def final_choice(self, finish_reason: str) -> dict[str, Any]:
        raise NotImplementedError

    def whole_choice(self, text: str, finish_reason: str) -> dict[str, Any]:
        raise NotImplementedError

    def body(self, result: OutputDelta) -> bytes:
        assert result.finish_reason is not None
        assert result.usage is not None
        text, of_choice, of_response = result.text, {}, {}
        if (details := self._details) is not None:
            text, of_choice, of_response = details.text(result), details.of_choice(result), details.of_response(result)
        choice = self.whole_choice(text, result.finish_reason) | of_choice
        return encode({**self._envelope, "choices": [choice], "usage": openai_usage(result.usage), **of_response})

    def events(self, delta: OutputDelta) -> bytes:
        out = self._text_event(delta)
        if delta.finish_reason is None:
            return out
        assert delta.usage is not None
        out += self._chunk(self.final_choice(delta.finish_reason))
        if self._include_usage:
            out += event(encode({**self._envelope, "object": self.chunk_object, "choices": [], "usage": openai_usage(delta.usage)}))
        return out

    def _text_event(self, delta: OutputDelta) -> bytes:
        """Tokens without text have an event of their own only when something is said about them."""
        details = self._details
        if details is None:
            return self._text_prefix + encode(delta.text) + self._text_suffix if delta.text else b""
        if not (delta.text or delta.token_ids or delta.prompt):
            return b""
        return self._chunk(self.text_choice(details.text(delta)) | details.of_choice(delta), details.of_response(delta))

    def _chunk(self, choice: dict[str, Any], beside: dict[str, Any] | None = None) -> bytes:
        usage = {"usage": None} if self._include_usage else {}
        return event(encode({**self._envelope, "object": self.chunk_object, "choices": [choice], **usage, **(beside or {})}))


class CompletionFormat(OpenAIFormat):
    """`/v1/completions`."""

    whole_object = chunk_object = "text_completion"

    def text_choice(self, text: str) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": None}

    def final_choice(self, finish_reason: str) -> dict[str, Any]:
        return self.whole_choice("", finish_reason)

    def whole_choice(self, text: str, finish_reason: str) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}


class ChatFormat(OpenAIFormat):
    """`/v1/chat/completions`. The first chunk of a stream says who speaks."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, response_id: str, model: str, created: int, include_usage: bool, details: TokenDetails | None = None) -> None:
        super().__init__(response_id, model, created, include_usage, details)
        self._started = False

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

    def whole_choice(self, text: str, finish_reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}


def _chat_choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
