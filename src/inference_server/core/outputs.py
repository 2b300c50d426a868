"""What a client's stream carries: deltas, the last of which of each choice is terminal.

Every choice of an accepted request gets exactly one terminal delta: one with a `finish_reason`, or one with an `error`.
"""

from dataclasses import dataclass, field

from inference_server.core.errors import InferenceServerError
from inference_server.core.logprobs import TokenLogprobs
from inference_server.core.request import FinishReason


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts and times of one finished generation; times in seconds from arrival at the server."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    ttft_s: float | None
    total_s: float


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The tokens of a prompt. logprobs: those of the second token and all after it, or nothing."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass(slots=True)
class OutputDelta:
    """Text and tokens since the delta before. `text` may be empty while a stop string or a character is held back.

    logprobs: one for each of token_ids if the request wants them, else none. prompt: with the first delta, if the request wants it.
    index: of the choice in its stream, which sets it.
    """

    text: str = ""
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
        self.token_ids += later.token_ids
        self.logprobs += later.logprobs
        self.prompt = self.prompt or later.prompt
        self.finish_reason = later.finish_reason
        self.error = later.error
        self.usage = later.usage
