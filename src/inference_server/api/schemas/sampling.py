"""The fields that every generating route shares, and their way into a `GenerationRequest`."""

from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from inference_server.api.schemas.base import Items, RequestBody, at_most
from inference_server.api.schemas.structured import ResponseFormat, StructuredOutputs
from inference_server.core.grammar import GrammarSpec

MAX_STOP_STRINGS = 16
MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_TOKEN_RULES = 1024
MAX_TOKEN_DIGITS = 9
MAX_ALLOWED_TOKENS = 2**14
MAX_BAD_WORDS = 64
INT32 = 2**31
INT64 = 2**63

StopString = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Word = Annotated[str, StringConstraints(max_length=256)]
TokenId = Annotated[int, Field(ge=0, lt=INT32)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Label = Annotated[str, StringConstraints(max_length=256)]


class SamplingBody(RequestBody):
    """Absent sampling values take the model's defaults. top_k: 0 or -1 means all tokens. priority: lower runs first."""

    max_tokens: int | None = Field(None, ge=1, lt=INT32)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=INT32)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-INT64, lt=INT64)
    presence_penalty: float = Field(0, ge=-2, le=2)
    frequency_penalty: float = Field(0, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    logit_bias: Annotated[dict[str, Bias], at_most(MAX_TOKEN_RULES)] = Field({})
    allowed_token_ids: Items[TokenId] = Field([], max_length=MAX_ALLOWED_TOKENS)
    bad_words: Items[Word] = Field([], max_length=MAX_BAD_WORDS)
    min_tokens: int = Field(0, ge=0, lt=INT32)
    stop: Items[StopString] = Field([], max_length=MAX_STOP_STRINGS)
    stop_token_ids: Items[TokenId] = Field([], max_length=MAX_TOKEN_RULES)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None
    stream: bool = False
    priority: int = Field(0, ge=-INT32, lt=INT32)
    cache_salt: Label = ""

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("logit_bias")
    @classmethod
    def _by_token_id(cls, value: dict[str, float]) -> dict[str, float]:
        """JSON has string keys only. Raises ValueError for one that is no token id, or stands for the same id as another."""
        if not all(key.isascii() and key.isdecimal() and len(key) <= MAX_TOKEN_DIGITS for key in value):
            raise ValueError("the keys must be token ids")
        if len({int(key) for key in value}) < len(value):
            raise ValueError("a token id is named twice")
        return value

    def grammar(self) -> GrammarSpec | None:
        """What the answer must fit; None for any text."""
        return self.structured_outputs.grammar() if self.structured_outputs else None

    def sampling_fields(self) -> dict[str, Any]:
        """The fields of `GenerationRequest` that have the same meaning on every route."""
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": 0 if self.top_k == -1 else self.top_k,
            "min_p": self.min_p,
            "seed": self.seed,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "logit_bias": tuple((int(token), bias) for token, bias in self.logit_bias.items()),
            "allowed_token_ids": frozenset(self.allowed_token_ids) or None,
            "bad_words": tuple(self.bad_words),
            "min_tokens": self.min_tokens,
            "stop": tuple(self.stop),
            "stop_token_ids": frozenset(self.stop_token_ids),
            "include_stop": self.include_stop_str_in_output,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
            "grammar": self.grammar(),
            "priority": self.priority,
            "cache_salt": self.cache_salt,
        }


class StreamOptions(RequestBody):
    """continuous_usage_stats: vLLM's, of streams with include_usage: each chunk has the counts so far of its choice."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class OpenAIBody(SamplingBody):
    """What the two OpenAI routes share.

    n: choices of each prompt. user: the client's name for who asks; it changes who is served first, not the output.
    """

    model: Label | None = None
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    user: Label = ""
    response_format: ResponseFormat | None = None
    return_token_ids: bool = False
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed when stream is true")
        return self

    @model_validator(mode="after")
    def _one_grammar(self) -> Self:
        if self.structured_outputs is not None and self.response_format is not None and self.response_format.type != "text":
            raise ValueError("response_format and structured_outputs exclude each other")
        return self

    def grammar(self) -> GrammarSpec | None:
        return super().grammar() or (self.response_format.grammar() if self.response_format else None)

    def sampling_fields(self) -> dict[str, Any]:
        return super().sampling_fields() | {"n": self.n}

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        options = self.stream_options
        return options is not None and options.include_usage and options.continuous_usage_stats
