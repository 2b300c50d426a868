"""`ResponseFormat`, the seam between the generic stream and the wire shapes, and what those shapes share."""

import json
from collections.abc import Sequence
from typing import Any, Protocol

from inference_server.api.errors import engine_error_body
from inference_server.api.sse import DONE
from inference_server.core.errors import InferenceServerError
from inference_server.core.outputs import OutputDelta, Usage

_ENCODER = json.JSONEncoder(separators=(",", ":"))


class ResponseFormat(Protocol):
    """The wire shape of what one client asked for; made once the request id is known."""

    def body(self, choices: Sequence[OutputDelta]) -> bytes:
        """The JSON of the whole answer, from one terminal delta without an error for each choice."""
        ...

    def events(self, delta: OutputDelta) -> bytes:
        """The server-sent events of one delta without an error, closing ones included if it is the last; may be empty."""
        ...

    def failure(self, error: InferenceServerError) -> bytes:
        """The last events of a stream that an error ends."""
        ...

    @property
    def end(self) -> bytes:
        """What follows the last event, after an error too."""
        ...


class DataEvents:
    """The end of a stream whose events are `data:` lines: an error in the one shape, and `[DONE]`."""

    end = DONE

    def failure(self, error: InferenceServerError) -> bytes:
        return event(engine_error_body(error))


def event(payload: bytes) -> bytes:
    return b"data: " + payload + b"\n\n"


def encode(value: Any) -> bytes:
    """Compact JSON. ASCII only: some clients split a stream's lines at U+2028 and its like, which JSON may hold unescaped."""
    return _ENCODER.encode(value).encode()


def openai_usage(usages: Sequence[Usage], n: int) -> dict[str, Any]:
    """The sum over all choices, n of each prompt in a row; a prompt counts once."""
    prompt_tokens = sum(usage.prompt_tokens for usage in usages[::n])
    completion_tokens = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in usages[::n])},
        "completion_tokens_details": {"reasoning_tokens": sum(usage.reasoning_tokens for usage in usages)},
    }
