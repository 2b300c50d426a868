"""Bodies of `/generate`."""

from pydantic import BaseModel, Field

from inference_server.api.schemas.chat import TemplateVariables
from inference_server.api.schemas.sampling import Label, SamplingBody


class GenerateBody(SamplingBody):
    """text: what the user says; it goes through the model's chat template. session_id: a stable name of one conversation.

    chat_template_kwargs: variables of the chat template, such as enable_thinking.
    """

    text: str = Field(min_length=1)
    session_id: Label = ""
    chat_template_kwargs: TemplateVariables = Field({})


class GenerateTotals(BaseModel):
    """The figures of one generation. Times in milliseconds, from the arrival at the server."""

    finish_reason: str
    prompt_tokens: int
    tokens_generated: int
    cache_hit_tokens: int
    ttft_ms: float | None
    total_ms: float
    request_id: str


class GenerateResponse(GenerateTotals):
    """The whole answer of a request that did not stream. reasoning_content: the thoughts, where there are any."""

    text: str
    reasoning_content: str | None = None
    token_ids: list[int]
