"""What the OpenAI routes answer, for `/openapi.json`. Answers are made by `api.formats` and never pass through here; a test holds
them against this. A field with a default may be absent.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorDetails(Answer):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(Answer):
    error: ErrorDetails


class CachedTokens(Answer):
    cached_tokens: int


class ReasoningTokens(Answer):
    reasoning_tokens: int


class UsageCounts(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class CompletionLogprobsObject(Answer):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoiceObject(Answer):
    index: int
    text: str
    logprobs: CompletionLogprobsObject | None
    finish_reason: Literal["stop", "length", "timeout"]
    token_ids: list[int] = []
    prompt_token_ids: list[int] = []


class CompletionObject(Answer):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoiceObject]
    usage: UsageCounts


class OtherToken(Answer):
    token: str
    logprob: float
    bytes: list[int]


class ChosenToken(OtherToken):
    top_logprobs: list[OtherToken]


class ChatLogprobsObject(Answer):
    content: list[ChosenToken]
    refusal: None


class FunctionCall(Answer):
    name: str
    arguments: str


class MessageCall(Answer):
    id: str
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(Answer):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""
    tool_calls: list[MessageCall] = []


class ChatChoiceObject(Answer):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobsObject | None
    finish_reason: Literal["stop", "length", "tool_calls", "timeout"]
    token_ids: list[int] = []


class ChatCompletionObject(Answer):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoiceObject]
    usage: UsageCounts
    prompt_token_ids: list[int] = []


class ResponsePart(Answer):
    """annotations and logprobs: of an `output_text`."""

    type: Literal["output_text", "reasoning_text"]
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class ResponseItem(Answer):
    id: str
    status: Literal["completed", "incomplete"]


class ResponseMessage(ResponseItem):
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[ResponsePart]


class ResponseThought(ResponseItem):
    type: Literal["reasoning"]
    summary: list[Any]
    content: list[ResponsePart]


class ResponseCall(ResponseItem):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class ResponseInputCounts(CachedTokens):
    cache_write_tokens: int


class ResponseCounts(Answer):
    input_tokens: int
    input_tokens_details: ResponseInputCounts
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class WhyIncomplete(Answer):
    reason: Literal["max_output_tokens", "timeout"]


class ResponseObject(BaseModel):
    """Beside these, what the request said: its instructions, tools, sampling and metadata."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str
    output: list[ResponseMessage | ResponseThought | ResponseCall]
    usage: ResponseCounts
    error: None
    incomplete_details: WhyIncomplete | None


STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "The answer, or with `stream` its events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "What is wrong with the request, or that it must wait.", "model": ErrorBody},
    "5XX": {"description": "What is wrong with the server.", "model": ErrorBody},
}
