"""`TokenDetails`: what an OpenAI choice says about its single tokens: log-probabilities, ids, and the prompt itself when it is echoed.

A collaborator of the formats, made only for requests that ask. -inf and what is no number go out as -9999.0, the least that OpenAI sends;
the first token of a prompt has no log-probability, which is null.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from inference_server.api.schemas.chat import ChatCompletionBody
from inference_server.api.schemas.completions import CompletionBody
from inference_server.core.logprobs import TokenLogprobs
from inference_server.core.outputs import OutputDelta, PromptTokens
from inference_server.tokenization.base import TokenizerLike

LEAST = -9999.0


class LogprobsShape(Protocol):
    """How one route writes log-probabilities."""

    def object(self, prompt: PromptTokens | None, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The `logprobs` of a choice that brings these tokens, after a prompt if it is echoed."""
        ...


class TokenDetails:
    """One choice's. shape: None leaves log-probabilities out. echo: the prompt as text, None where it is not echoed.

    prompt_beside: the ids of the prompt stand beside the choices, as in vLLM's chats, and not in the choice, as in its completions.
    """

    def __init__(self, shape: LogprobsShape | None, token_ids: bool = False, echo: str | None = None, prompt_beside: bool = False) -> None:
        self._shape = shape
        self._token_ids = token_ids
        self._echo = echo
        self._prompt_beside = prompt_beside

    def text(self, delta: OutputDelta) -> str:
        """The delta's text, behind the prompt if it is echoed here."""
        return delta.text if self._echo is None or delta.prompt is None else self._echo + delta.text

    def of_choice(self, delta: OutputDelta) -> dict[str, Any]:
        """What the choice of this delta has beside its text."""
        fields: dict[str, Any] = {}
        if self._shape is not None:
            fields["logprobs"] = self._shape.object(None if self._echo is None else delta.prompt, delta.logprobs)
        if self._token_ids:
            fields["token_ids"] = delta.token_ids
        return fields if self._prompt_beside else fields | self._prompt_ids(delta)

    def of_response(self, delta: OutputDelta) -> dict[str, Any]:
        """What the response, or the event, has beside its choices."""
        return self._prompt_ids(delta) if self._prompt_beside else {}

    def _prompt_ids(self, delta: OutputDelta) -> dict[str, Any]:
        return {"prompt_token_ids": delta.prompt.token_ids} if self._token_ids and delta.prompt is not None else {}


def chat_details(body: ChatCompletionBody, tokenizer: TokenizerLike) -> Sequence[TokenDetails | None]:
    """For each choice; None where the request asks for nothing."""
    if not (body.logprobs or body.return_token_ids):
        return [None] * body.n
    shape = ChatLogprobs(tokenizer) if body.logprobs else None
    return [TokenDetails(shape, body.return_token_ids, prompt_beside=True) for _ in range(body.n)]


def completion_details(body: CompletionBody, tokenizer: TokenizerLike) -> Sequence[TokenDetails | None]:
    """For each choice of each prompt; None where the request asks for nothing."""
    if body.logprobs is None and not (body.return_token_ids or body.echo):
        return [None] * (len(body.prompts) * body.n)
    echoes = [_as_text(prompt, tokenizer) if body.echo else None for prompt in body.prompts]
    return [
        TokenDetails(None if body.logprobs is None else CompletionLogprobs(tokenizer, echo), body.return_token_ids, echo)
        for echo in echoes
        for _ in range(body.n)
    ]


class ChatLogprobs:
    """`{"content": [{token, logprob, bytes, top_logprobs}], "refusal": null}`."""

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self._tokenizer = tokenizer

    def object(self, prompt: PromptTokens | None, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        content = [
            {**self._entry(token.token_id, token.logprob), "top_logprobs": [self._entry(*other) for other in token.top]}
            for token in logprobs
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token_id)
        return {"token": data.decode(errors="replace"), "logprob": _finite(logprob), "bytes": list(data)}


class CompletionLogprobs:
    """`{tokens, token_logprobs, top_logprobs, text_offset}`. Offsets are characters of the choice's text, going on from chunk to chunk.

    echo: the prompt as the choice's text has it. A token that the tokenizer put before it takes no room there.
    """

    def __init__(self, tokenizer: TokenizerLike, echo: str | None) -> None:
        self._tokenizer = tokenizer
        self._echo = echo
        self._offset = 0

    def object(self, prompt: PromptTokens | None, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        before = [] if prompt is None else [None, *prompt.logprobs]
        tokens = [] if prompt is None else [self._text(prompt.token_ids[0])]
        tokens += [self._text(token.token_id) for token in (*before[1:], *logprobs) if token is not None]
        if prompt is not None and self._echo is not None and not self._echo.startswith(tokens[0]):
            self._offset = -len(tokens[0])
        offsets = []
        for token in tokens:
            offsets.append(max(self._offset, 0))
            self._offset += len(token)
        values = [*before, *logprobs]
        return {
            "tokens": tokens,
            "token_logprobs": [None if value is None else _finite(value.logprob) for value in values],
            "top_logprobs": [None if value is None else self._top(value) for value in values],
            "text_offset": offsets,
        }

    def _top(self, value: TokenLogprobs) -> dict[str, float]:
        """With the token itself, as OpenAI's. Where two tokens have the same text, the likelier one counts."""
        top: dict[str, float] = {}
        for token_id, logprob in (*value.top, (value.token_id, value.logprob)):
            top.setdefault(self._text(token_id), _finite(logprob))
        return top

    def _text(self, token_id: int) -> str:
        return self._tokenizer.token_bytes(token_id).decode(errors="replace")


def _as_text(prompt: str | list[int], tokenizer: TokenizerLike) -> str:
    return prompt if isinstance(prompt, str) else tokenizer.decode(prompt, skip_special_tokens=False)


def _finite(logprob: float) -> float:
    return logprob if logprob > LEAST else LEAST
