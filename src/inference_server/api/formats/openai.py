"""OpenAI's chat completions and completions.

Most chunks of one choice differ in a text only, so the rest is encoded once and a delta costs one string encoding.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inference_server.api.formats.base import DataEvents, encode, event, openai_usage
from inference_server.api.formats.chat_message import CallPieces, whole_message
from inference_server.api.formats.running_usage import RunningUsage
from inference_server.api.formats.token_details import TokenDetails
from inference_server.core.outputs import OutputDelta, Usage

_SLOT = "\0"
_ENCODED_SLOT = encode(_SLOT)
_NOTHING: Mapping[str, Any] = {}

ChunkEvent = Callable[[Mapping[str, Any], Mapping[str, Any]], bytes]
"""The event of a chunk that holds one choice, and what it has beside its choices."""


class Choice:
    """One choice of a response: its part of the stream and of the whole answer.

    details: what to say about its single tokens, None if the request did not ask.
    """

    def __init__(self, index: int, chunk: ChunkEvent, details: TokenDetails | None) -> None:
        self._index = index
        self._chunk = chunk
        self._details = details
        self._text_chunk = self._around_slot(self._text(_SLOT))

    def whole(self, result: OutputDelta) -> dict[str, Any]:
        """The choice of an answer that did not stream."""
        if (details := self._details) is None:
            return self._whole(result, result.text)
        return self._whole(result, details.text(result)) | details.of_choice(result)

    def beside(self, result: OutputDelta) -> Mapping[str, Any]:
        """What an answer that did not stream has beside its choices."""
        return _NOTHING if self._details is None else self._details.of_response(result)

    def events(self, delta: OutputDelta) -> bytes:
        """The chunks of a delta, the closing one included if it is terminal."""
        out = self._content(delta)
        return out if delta.finish_reason is None else out + self._chunk(self._final(delta.finish_reason), _NOTHING)

    def _content(self, delta: OutputDelta) -> bytes:
        """The chunks of what is new in the answer. Tokens without text have one only when something is said about them."""
        details = self._details
        if details is None:
            return _fill(self._text_chunk, delta.text) if delta.text else b""
        if not (delta.text or delta.token_ids or delta.prompt):
            return b""
        return self._chunk(self._text(details.text(delta)) | details.of_choice(delta), details.of_response(delta))

    def _text(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _final(self, finish_reason: str) -> dict[str, Any]:
        raise NotImplementedError

    def _whole(self, result: OutputDelta, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _around_slot(self, choice: dict[str, Any]) -> tuple[bytes, bytes]:
        prefix, suffix = self._chunk(choice, _NOTHING).split(_ENCODED_SLOT)
        return prefix, suffix


class CompletionChoice(Choice):
    def _whole(self, result: OutputDelta, text: str) -> dict[str, Any]:
        return self._text(text) | {"finish_reason": result.finish_reason}

    def _text(self, text: str) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": None}

    def _final(self, finish_reason: str) -> dict[str, Any]:
        return self._text("") | {"finish_reason": finish_reason}


class ChatChoice(Choice):
    """The first chunk says who speaks."""

    def __init__(self, index: int, chunk: ChunkEvent, details: TokenDetails | None) -> None:
        super().__init__(index, chunk, details)
        self._reasoning_chunk = self._around_slot(self._delta({"reasoning_content": _SLOT}))
        self._calls = CallPieces()
        self._started = False

    def events(self, delta: OutputDelta) -> bytes:
        out = super().events(delta)
        if self._started:
            return out
        self._started = True
        return self._chunk(self._delta({"role": "assistant", "content": "", "refusal": None}), _NOTHING) + out

    def _content(self, delta: OutputDelta) -> bytes:
        out = super()._content(delta)
        if delta.reasoning:
            out = _fill(self._reasoning_chunk, delta.reasoning) + out
        if delta.tool_calls and (calls := self._calls.delta(delta.tool_calls)):
            out += self._chunk(self._delta(calls), _NOTHING)
        return out

    def _text(self, text: str) -> dict[str, Any]:
        return self._delta({"content": text})

    def _final(self, finish_reason: str) -> dict[str, Any]:
        return self._delta({}, finish_reason)

    def _whole(self, result: OutputDelta, text: str) -> dict[str, Any]:
        return {"index": self._index, "message": whole_message(result), "logprobs": None, "finish_reason": result.finish_reason}

    def _delta(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


class OpenAIFormat(DataEvents):
    """What both shapes share. Choice i of prompt p has index p * n + i.

    details: for each choice, what to say about its single tokens, or None. include_usage: one last chunk with the usage and no choices,
    and `usage: null` on all others, or what `running_usage` says in its place.
    """

    whole_object: str
    chunk_object: str
    choice: type[Choice]

    def __init__(
        self,
        response_id: str,
        model: str,
        created: int,
        include_usage: bool,
        n: int,
        details: Sequence[TokenDetails | None],
        running_usage: RunningUsage | None = None,
    ) -> None:
        self._envelope: dict[str, Any] = {"id": response_id, "object": self.whole_object, "created": created, "model": model}
        self._include_usage = include_usage
        self._running_usage = running_usage
        self._n = n
        self._choices = [self.choice(index, self._chunk, of_choice) for index, of_choice in enumerate(details)]
        self._usages: dict[int, Usage] = {}  # of the choices that have ended

    def body(self, choices: Sequence[OutputDelta]) -> bytes:
        wholes = [choice.whole(result) for choice, result in zip(self._choices, choices, strict=True)]
        usages = [result.usage for result in choices if result.usage is not None]
        beside = self._choices[0].beside(choices[0])  # the same for all choices of a prompt, and there is one prompt if it is not empty
        return encode({**self._envelope, "choices": wholes, "usage": openai_usage(usages, self._n), **beside})

    def events(self, delta: OutputDelta) -> bytes:
        out = self._choices[delta.index].events(delta)
        if self._running_usage is not None:
            out = self._running_usage.put(out, delta)
        if delta.usage is not None:
            self._usages[delta.index] = delta.usage
            if self._include_usage and len(self._usages) == len(self._choices):
                usage = openai_usage([self._usages[index] for index in range(len(self._choices))], self._n)
                out += event(encode({**self._envelope, "object": self.chunk_object, "choices": [], "usage": usage}))
        return out

    def _chunk(self, choice: Mapping[str, Any], beside: Mapping[str, Any]) -> bytes:
        usage = {"usage": None} if self._include_usage else {}
        return event(encode({**self._envelope, "object": self.chunk_object, "choices": [choice], **usage, **beside}))


class CompletionFormat(OpenAIFormat):
    """`/v1/completions`."""

    whole_object = chunk_object = "text_completion"
    choice = CompletionChoice


class ChatFormat(OpenAIFormat):
    """`/v1/chat/completions`."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    choice = ChatChoice


def _fill(around: tuple[bytes, bytes], text: str) -> bytes:
    return around[0] + encode(text) + around[1]
