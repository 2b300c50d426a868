"""`ResponseFormat`, the seam between the generic stream and the wire shapes, and what those shapes share."""

import json
from collections.abc import Sequence
from typing import Any, Protocol

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
    }
