"""OpenAI's `/v1/responses`: one answer as items, whole and as the events by which they come.

An item is opened by its first piece and closed before the next one opens, so text after a tool call is a new message. The events
are named and numbered, and the last holds the whole response; there is no `[DONE]`.
"""

from collections.abc import Sequence
from typing import Any

from inference_server.api.errors import status_of
from inference_server.api.formats.base import encode
from inference_server.core.errors import InferenceServerError
from inference_server.core.outputs import CallState, OutputDelta, ToolCallDelta, Usage
from inference_server.core.request import FinishReason

_INCOMPLETE = {FinishReason.LENGTH: "max_output_tokens", FinishReason.TIMEOUT: "timeout"}


class ResponsesFormat:
    """response: what is known before the answer, under the names of the wire; it becomes the whole response."""

    end = b""

    def __init__(self, request_id: str, response: dict[str, Any]) -> None:
        self._request_id = request_id
        self._response = {"id": f"resp_{request_id}", "object": "response", "status": "in_progress", **response}
        self._response |= {"error": None, "incomplete_details": None, "output": [], "usage": None}
        self._output: list[dict[str, Any]] = self._response["output"]
        self._texts: list[str] = []  # pieces of the open item
        self._open: dict[str, Any] | None = None
        self._sequence_number = 0

    def body(self, choices: Sequence[OutputDelta]) -> bytes:
        (result,) = choices
        self.events(result)
        return encode(self._response)

    def events(self, delta: OutputDelta) -> bytes:
        out = self._start()
        for piece in delta.tool_calls:
            if not piece.name:  # goes on with the open call, so before what follows it
                out += self._call(piece)
        if delta.reasoning:
            out += self._say("reasoning", delta.reasoning)
        if delta.text:
            out += self._say("message", delta.text)
        for piece in delta.tool_calls:
            if piece.name:
                out += self._call(piece)
        if delta.finish_reason is None:
            return out
        if not self._output:
            out += self._say("message", "")
        reason = _INCOMPLETE.get(delta.finish_reason)
        status = "incomplete" if reason else "completed"
        out += self._close(status)
        self._response |= {"status": status, "incomplete_details": {"reason": reason} if reason else None, "usage": _usage(delta.usage)}
        return out + self._event(f"response.{status}", response=self._response)

    def failure(self, error: InferenceServerError) -> bytes:
        out = self._start() + self._close("incomplete")
        status = status_of(error)
        message = "the server failed to run this request" if status == 500 else error.message
        code = "rate_limit_exceeded" if status == 429 else "server_error"
        self._response |= {"status": "failed", "error": {"code": code, "message": message}}
        return out + self._event("response.failed", response=self._response)

    def _start(self) -> bytes:
        if self._sequence_number:
            return b""
        return self._event("response.created", response=self._response) + self._event("response.in_progress", response=self._response)

    def _say(self, kind: str, text: str) -> bytes:
        """A piece of a message or of a thought."""
        out = b""
        if self._open is None or self._open["type"] != kind:
            out = self._close("completed")
            if kind == "message":
                out += self._add("msg", {"type": "message", "role": "assistant", "content": []})
            else:
                out += self._add("rs", {"type": "reasoning", "summary": [], "content": []})
            out += self._event("response.content_part.added", **self._place(), part=_part(kind, ""))
        self._texts.append(text)
        if kind == "message":
            return out + self._event("response.output_text.delta", **self._place(), delta=text, logprobs=[])
        return out + self._event("response.reasoning_text.delta", **self._place(), delta=text)

    def _call(self, piece: ToolCallDelta) -> bytes:
        out = b""
        if piece.name:
            out = self._close("completed")
            out += self._add("fc", {"type": "function_call", "call_id": piece.id, "name": piece.name, "arguments": ""})
        elif self._open is None or self._open["type"] != "function_call":
            return b""  # of a call that broke before the client saw it
        if piece.arguments:
            self._texts.append(piece.arguments)
            out += self._event("response.function_call_arguments.delta", **self._place(part=False), delta=piece.arguments)
        if piece.state is CallState.OPEN:
            return out
        return out + self._close("completed" if piece.state is CallState.COMPLETE else "incomplete")

    def _add(self, prefix: str, item: dict[str, Any]) -> bytes:
        index = len(self._output)
        self._open = {"id": f"{prefix}_{self._request_id}_{index}", "status": "in_progress", **item}
        self._output.append(self._open)
        return self._event("response.output_item.added", output_index=index, item=self._open)

    def _close(self, status: str) -> bytes:
        item = self._open
        if item is None:
            return b""
        text = "".join(self._texts)
        kind, place = item["type"], self._place(part=item["type"] != "function_call")
        self._texts.clear()
        self._open = None
        out = b""
        if kind == "function_call":
            item["arguments"] = text
            if status == "completed":
                out = self._event("response.function_call_arguments.done", **place, name=item["name"], arguments=text)
        else:
            part = _part(kind, text)
            item["content"].append(part)
            if kind == "message":
                out = self._event("response.output_text.done", **place, text=text, logprobs=[])
            else:
                out = self._event("response.reasoning_text.done", **place, text=text)
            out += self._event("response.content_part.done", **place, part=part)
        item["status"] = status
        return out + self._event("response.output_item.done", output_index=place["output_index"], item=item)

    def _place(self, part: bool = True) -> dict[str, Any]:
        assert self._open is not None
        place = {"item_id": self._open["id"], "output_index": len(self._output) - 1}
        return {**place, "content_index": 0} if part else place

    def _event(self, kind: str, **fields: Any) -> bytes:
        payload = {"type": kind, "sequence_number": self._sequence_number, **fields}
        self._sequence_number += 1
        return b"event: " + kind.encode() + b"\ndata: " + encode(payload) + b"\n\n"


def _part(kind: str, text: str) -> dict[str, Any]:
    return (
        {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        if kind == "message"
        else {"type": "reasoning_text", "text": text}
    )


def _usage(usage: Usage | None) -> dict[str, Any]:
    assert usage is not None
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
