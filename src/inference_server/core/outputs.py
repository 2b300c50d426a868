"""What a client's stream carries: deltas.

Every choice of an accepted request gets exactly one terminal delta: one with a `finish_reason`, or one with an `error`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from inference_server.core.errors import InferenceServerError
from inference_server.core.logprobs import TokenLogprobs
from inference_server.core.request import FinishReason


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts and times of one finished generation; times in seconds from arrival at the server.

    reasoning_tokens: those of `completion_tokens` that belong to thoughts, their markers included.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    ttft_s: float | None
    total_s: float
    reasoning_tokens: int = 0


class CallState(StrEnum):
    """BROKEN: the markup of the call went wrong after its name had gone out. The call is void, its markup follows as text."""

    OPEN = "open"
    COMPLETE = "complete"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of one tool call. id and name: in the first piece of an index only. The pieces of `arguments` join to a JSON object."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    state: CallState = CallState.OPEN


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The tokens of a prompt. logprobs: those of the second token and all after it, or nothing."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass(slots=True)
class OutputDelta:
    """Text and tokens since the delta before. `text` may be empty while a stop string or a character is held back.

    In a chat, `text` is the visible answer alone, where the model's format marks thoughts and tool calls.
    index: of the choice in its stream, which sets it.
    logprobs: one for each of token_ids if the request wants them, else none. prompt: with the first delta, if the request wants it.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt: PromptTokens | None = None
    finish_reason: FinishReason | None = None
    error: InferenceServerError | None = None
    usage: Usage | None = None
    index: int = 0

    @property
    def terminal(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    def merge(self, later: "OutputDelta") -> None:
        """Fold the delta that follows into this one, for readers that are slower than the engine."""
        self.text += later.text
        if later.reasoning:
            self.reasoning += later.reasoning
        if later.tool_calls:
            self.tool_calls = merge_calls((*self.tool_calls, *later.tool_calls))
        self.token_ids += later.token_ids
        self.logprobs += later.logprobs
        self.prompt = self.prompt or later.prompt
        self.finish_reason = later.finish_reason
        self.error = later.error
        self.usage = later.usage


def merge_calls(pieces: Sequence[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
    """One piece a call, in the order in which the calls began; of a broken one, that it is broken."""
    calls: dict[int, ToolCallDelta] = {}
    for piece in pieces:
        call = calls.get(piece.index)
        if call is None or piece.state is CallState.BROKEN:
            calls[piece.index] = piece
        else:
            calls[piece.index] = replace(call, arguments=call.arguments + piece.arguments, state=piece.state)
    return tuple(calls.values())
