"""The fields that every generating route shares, and their way into a `GenerationRequest`."""

from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from inference_server.api.schemas.base import RequestBody

MAX_STOP_STRINGS = 16
MAX_CHOICES = 128
INT32 = 2**31
INT64 = 2**63

StopString = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Label = Annotated[str, StringConstraints(max_length=256)]


class SamplingBody(RequestBody):
    """Absent sampling values take the model's defaults. top_k: 0 or -1 means all tokens. priority: lower runs first."""

    max_tokens: int | None = Field(None, ge=1, lt=INT32)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=INT32)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-INT64, lt=INT64)
    stop: list[StopString] = Field([], max_length=MAX_STOP_STRINGS)
    ignore_eos: bool = False
    stream: bool = False
    priority: int = Field(0, ge=-INT32, lt=INT32)
    cache_salt: Label = ""

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    def sampling_fields(self) -> dict[str, Any]:
        """The fields of `GenerationRequest` that have the same meaning on every route."""
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": 0 if self.top_k == -1 else self.top_k,
            "min_p": self.min_p,
            "seed": self.seed,
            "stop": tuple(self.stop),
            "ignore_eos": self.ignore_eos,
            "priority": self.priority,
            "cache_salt": self.cache_salt,
        }


class StreamOptions(RequestBody):
    include_usage: bool = False


class OpenAIBody(SamplingBody):
    """What the two OpenAI routes share.

    n: choices of each prompt. user: the client's name for who asks; it changes who is served first, not the output.
    """

    model: Label | None = None
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    user: str = ""
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed when stream is true")
        return self

    def sampling_fields(self) -> dict[str, Any]:
        return super().sampling_fields() | {"n": self.n}

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage
