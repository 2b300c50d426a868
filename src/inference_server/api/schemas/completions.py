"""Body of `/v1/completions`: one prompt, as raw text or as token ids."""

from typing import Annotated, Any

from pydantic import Field, field_validator

from inference_server.api.schemas.sampling import OpenAIBody, TokenId

DEFAULT_MAX_TOKENS = 16  # OpenAI's, for this route alone


class CompletionBody(OpenAIBody):
    """A list that holds just one prompt is that prompt; several prompts in one request are not supported."""

    prompt: Annotated[str, Field(min_length=1)] | Annotated[list[TokenId], Field(min_length=1)]

    @field_validator("prompt", mode="before")
    @classmethod
    def _unwrap(cls, value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], str | list):
            if len(value) > 1:
                raise ValueError("only one prompt in a request is supported")
            return value[0]
        return value
