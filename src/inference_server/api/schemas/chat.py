"""Bodies of `/v1/chat/completions`: messages as strings or text parts, in the OpenAI form."""

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from inference_server.api.schemas.base import RequestBody
from inference_server.api.schemas.sampling import INT32, MAX_LOGPROBS, OpenAIBody
from inference_server.core.errors import UnsupportedParameterError
from inference_server.core.generation import ChatPrompt


class TextPart(RequestBody):
    type: Literal["text"]
    text: str


class ChatMessage(RequestBody):
    """One turn, handed to the chat template as it is."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart]
    name: str | None = None
    tool_call_id: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _text_only(cls, value: Any) -> Any:
        for part in value if isinstance(value, list) else ():
            if isinstance(part, dict) and part.get("type", "text") != "text":
                raise UnsupportedParameterError(f"content parts of type '{str(part['type'])[:64]}' are not supported", param="messages")
        return value


def chat_prompt(messages: list[ChatMessage]) -> ChatPrompt:
    return ChatPrompt([message.model_dump(exclude_none=True) for message in messages])


class ChatCompletionBody(OpenAIBody):
    """max_completion_tokens is the newer name of max_tokens and wins over it."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, lt=INT32)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_LOGPROBS)

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, value: int, info: ValidationInfo) -> int:
        if value and not info.data.get("logprobs"):
            raise ValueError("logprobs must be true for this")
        return value

    def sampling_fields(self) -> dict[str, Any]:
        fields = super().sampling_fields()
        fields |= {"logprobs": self.top_logprobs if self.logprobs else None, "return_prompt": self.return_token_ids}
        return fields if self.max_completion_tokens is None else fields | {"max_tokens": self.max_completion_tokens}
