"""Body of `/v1/completions`: one prompt or several, as raw text or as token ids."""

from typing import Annotated

from pydantic import Field

from inference_server.api.schemas.sampling import INT32, OpenAIBody

NonEmpty = Field(min_length=1)
Text = Annotated[str, NonEmpty]
TokenId = Annotated[int, Field(ge=0, lt=INT32)]
TokenIds = Annotated[list[TokenId], NonEmpty]
DEFAULT_MAX_TOKENS = 16  # OpenAI's, for this route alone


class CompletionBody(OpenAIBody):
    prompt: Text | TokenIds | Annotated[list[Text], NonEmpty] | Annotated[list[TokenIds], NonEmpty]

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        return prompt if isinstance(prompt[0], str | list) else [prompt]
