"""Bodies of `/v1/chat/completions`: messages as strings or text parts, tools and their calls, in the OpenAI form."""

from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from inference_server.api.schemas.base import Items, RequestBody
from inference_server.api.schemas.sampling import INT32, MAX_LOGPROBS, OpenAIBody
from inference_server.api.schemas.tools import ToolCall, ToolChoice, Tools, check_choice, tool_fields
from inference_server.core.errors import UnsupportedParameterError
from inference_server.core.generation import ChatPrompt

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
TemplateVariables = dict[str, Any]
MAX_MESSAGES = 2048  # as many as OpenAI takes


class TextPart(RequestBody):
    type: Literal["text"]
    text: str


class ChatMessage(RequestBody):
    """One turn, handed to the chat template as it is. reasoning_content: the thoughts of an earlier answer."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Items[TextPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Items[ToolCall] | None = None
    tool_call_id: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _text_only(cls, value: Any) -> Any:
        for part in value if isinstance(value, list) else ():
            if isinstance(part, dict) and part.get("type", "text") != "text":
                raise UnsupportedParameterError(f"content parts of type '{str(part['type'])[:64]}' are not supported", param="messages")
        return value

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only an assistant's message has tool_calls")
        if self.content is None and not self.tool_calls:
            raise ValueError("content is required")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("the result of a tool needs the tool_call_id that it answers")
        return self


def plain_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    return [message.model_dump(exclude_none=True) for message in messages]


class ChatCompletionBody(OpenAIBody):
    """max_completion_tokens is the newer name of max_tokens and wins over it. chat_template_kwargs: variables of the chat template.

    reasoning_effort: `none` sets the template's `enable_thinking` to false, any other value to true; templates that know
    `reasoning_effort` get it as it is.
    """

    messages: Items[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1, lt=INT32)
    tools: Tools = Field([])
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    chat_template_kwargs: TemplateVariables = Field({})
    reasoning_effort: ReasoningEffort | None = None
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_LOGPROBS)

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, value: int, info: ValidationInfo) -> int:
        if value and not info.data.get("logprobs"):
            raise ValueError("logprobs must be true for this")
        return value

    @model_validator(mode="after")
    def _may_choose(self) -> Self:
        check_choice(self.tools, self.tool_choice)
        return self

    def prompt(self) -> ChatPrompt:
        return ChatPrompt(
            plain_messages(self.messages),
            **tool_fields(self.tools, self.tool_choice),
            parallel_tool_calls=self.parallel_tool_calls,
            variables=self.chat_template_kwargs,
            reasoning_effort=self.reasoning_effort,
        )

    def sampling_fields(self) -> dict[str, Any]:
        fields = super().sampling_fields()
        fields["logprobs"] = self.top_logprobs if self.logprobs else None
        fields["return_prompt"] = self.return_token_ids or self.continuous_usage
        return fields if self.max_completion_tokens is None else fields | {"max_tokens": self.max_completion_tokens}
