"""OpenAI's chat completions and completions.

The chunks of one choice differ in a text and a finish reason only, so the rest is encoded once and a delta costs one string encoding.
"""

from collections.abc import Sequence
from typing import Any

from inference_server.api.formats.base import encode, event, openai_usage
from inference_server.api.formats.token_details import TokenDetails
from inference_server.core.outputs import OutputDelta, Usage

_SLOT = "\0"
_ENCODED_SLOT = encode(_SLOT)


class OpenAIFormat:
    """What both shapes share. Choice i of prompt p has index p * n + i.

    include_usage: one last chunk with the usage and no choices, and `usage: null` on all others. details: what to say about single
    tokens, one for each choice; None for requests that did not ask.
    """

    whole_object: str
    chunk_object: str

    def __init__(
        self,
        response_id: str,
        model: str,
        created: int,
        include_usage: bool,
        n: int,
        num_prompts: int = 1,
        details: Sequence[TokenDetails] | None = None,
    ) -> None:
        self._details = details
        self._envelope: dict[str, Any] = {"id": response_id, "object": self.whole_object, "created": created, "model": model}
        self._include_usage = include_usage
        self._n = n
        self._num_choices = n * num_prompts
        self._text_chunks: dict[int, tuple[bytes, bytes]] = {}  # what stands before a text, and after it, by choice
        self._usages: dict[int, Usage] = {}  # of the choices that have ended

    def text_choice(self, index: int, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def final_choice(self, index: int, finish_reason: str) -> dict[str, Any]:
        raise NotImplementedError

    def whole_choice(self, index: int, text: str, finish_reason: str) -> dict[str, Any]:
        raise NotImplementedError

    def body(self, choices: Sequence[OutputDelta]) -> bytes:
        wholes = [self._whole(choice) for choice in choices if choice.finish_reason is not None]
        usages = [choice.usage for choice in choices if choice.usage is not None]
        assert len(usages) == len(wholes) == self._num_choices
        beside = self._details[0].of_response(choices[0]) if self._details else {}
        return encode({**self._envelope, "choices": wholes, "usage": openai_usage(usages, self._n), **beside})

    def events(self, delta: OutputDelta) -> bytes:
        out = self._text_event(delta)
        if delta.finish_reason is None:
            return out
        assert delta.usage is not None
        out += self._chunk(self.final_choice(delta.index, delta.finish_reason))
        self._usages[delta.index] = delta.usage
        if self._include_usage and len(self._usages) == self._num_choices:
            usage = openai_usage([self._usages[index] for index in range(self._num_choices)], self._n)
            out += event(encode({**self._envelope, "object": self.chunk_object, "choices": [], "usage": usage}))
        return out

    def _whole(self, choice: OutputDelta) -> dict[str, Any]:
        assert choice.finish_reason is not None
        if self._details is None:
            return self.whole_choice(choice.index, choice.text, choice.finish_reason)
        details = self._details[choice.index]
        return self.whole_choice(choice.index, details.text(choice), choice.finish_reason) | details.of_choice(choice)

    def _text_event(self, delta: OutputDelta) -> bytes:
        """Tokens without text have an event of their own only when something is said about them."""
        if self._details is None:
            return self._text_chunk(delta.index, delta.text) if delta.text else b""
        if not (delta.text or delta.token_ids or delta.prompt):
            return b""
        details = self._details[delta.index]
        choice = self.text_choice(delta.index, details.text(delta)) | details.of_choice(delta)
        return self._chunk(choice, details.of_response(delta))

    def _text_chunk(self, index: int, text: str) -> bytes:
        if index not in self._text_chunks:
            prefix, suffix = self._chunk(self.text_choice(index, _SLOT)).split(_ENCODED_SLOT)
            self._text_chunks[index] = prefix, suffix
        prefix, suffix = self._text_chunks[index]
        return prefix + encode(text) + suffix

    def _chunk(self, choice: dict[str, Any], beside: dict[str, Any] | None = None) -> bytes:
        usage = {"usage": None} if self._include_usage else {}
        return event(encode({**self._envelope, "object": self.chunk_object, "choices": [choice], **usage, **(beside or {})}))


class CompletionFormat(OpenAIFormat):
    """`/v1/completions`."""

    whole_object = chunk_object = "text_completion"

    def text_choice(self, index: int, text: str) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None}

    def final_choice(self, index: int, finish_reason: str) -> dict[str, Any]:
        return self.whole_choice(index, "", finish_reason)

    def whole_choice(self, index: int, text: str, finish_reason: str) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}


class ChatFormat(OpenAIFormat):
    """`/v1/chat/completions`. The first chunk of each choice in a stream says who speaks."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(
        self,
        response_id: str,
        model: str,
        created: int,
        include_usage: bool,
        n: int,
        num_prompts: int = 1,
        details: Sequence[TokenDetails] | None = None,
    ) -> None:
        super().__init__(response_id, model, created, include_usage, n, num_prompts, details)
        self._started: set[int] = set()

    def events(self, delta: OutputDelta) -> bytes:
        out = super().events(delta)
        if delta.index in self._started:
            return out
        self._started.add(delta.index)
        return self._chunk(_chat_choice(delta.index, {"role": "assistant", "content": "", "refusal": None})) + out

    def text_choice(self, index: int, text: str) -> dict[str, Any]:
        return _chat_choice(index, {"content": text})

    def final_choice(self, index: int, finish_reason: str) -> dict[str, Any]:
        return _chat_choice(index, {}, finish_reason)

    def whole_choice(self, index: int, text: str, finish_reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": finish_reason}


def _chat_choice(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
