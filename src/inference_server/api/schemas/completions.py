"""Body of `/v1/completions`: one prompt or several, as raw text or as token ids."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from inference_server.api.schemas.base import Items
from inference_server.api.schemas.sampling import INT32, MAX_LOGPROBS, OpenAIBody, TokenId
from inference_server.core.errors import InvalidRequestError

DEFAULT_MAX_TOKENS = 16  # OpenAI's, for this route alone
MAX_PROMPTS = 2048

NonEmpty = Field(min_length=1)
Several = Field(min_length=1, max_length=MAX_PROMPTS)
Text = Annotated[str, NonEmpty]
TokenIds = Annotated[Items[TokenId], NonEmpty]


class CompletionBody(OpenAIBody):
    """logprobs: how many of the likeliest tokens to name beside each; with echo also for the prompt's.

    max_tokens 0: only what echo or return_token_ids say of the prompt.
    """

    prompt: Text | TokenIds | Annotated[Items[Text], Several] | Annotated[Items[TokenIds], Several]
    echo: bool = False
    max_tokens: int | None = Field(None, ge=0, lt=INT32)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if self.max_tokens == 0 and not (self.echo or self.return_token_ids):
            raise InvalidRequestError("0 tokens are only allowed with echo or return_token_ids", param="max_tokens")
        return self

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        return prompt if isinstance(prompt[0], str | list) else [prompt]

    def sampling_fields(self) -> dict[str, Any]:
        prompt_logprobs = self.logprobs if self.echo else None
        return_prompt = self.echo or self.return_token_ids or self.continuous_usage
        told = {"logprobs": self.logprobs, "prompt_logprobs": prompt_logprobs, "return_prompt": return_prompt}
        return super().sampling_fields() | told
