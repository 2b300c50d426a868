"""Body of `/v1/completions`: one prompt, as raw text or as token ids."""

from typing import Annotated, Any

from pydantic import Field, field_validator

from inference_server.api.schemas.sampling import INT32, MAX_LOGPROBS, OpenAIBody, TokenId

DEFAULT_MAX_TOKENS = 16  # OpenAI's, for this route alone


class CompletionBody(OpenAIBody):
    """A list that holds just one prompt is that prompt; several prompts in one request are not supported.

    logprobs: how many of the likeliest tokens to name beside each; with echo also for the prompt's. max_tokens 0: only what is said of
    the prompt.
    """

    prompt: Annotated[str, Field(min_length=1)] | Annotated[list[TokenId], Field(min_length=1)]
    echo: bool = False
    max_tokens: int | None = Field(None, ge=0, lt=INT32)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @field_validator("prompt", mode="before")
    @classmethod
    def _unwrap(cls, value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], str | list):
            if len(value) > 1:
                raise ValueError("only one prompt in a request is supported")
            return value[0]
        return value

    def sampling_fields(self) -> dict[str, Any]:
        prompt_logprobs = self.logprobs if self.echo else None
        told = {"logprobs": self.logprobs, "prompt_logprobs": prompt_logprobs, "return_prompt": self.echo or self.return_token_ids}
        return super().sampling_fields() | told
