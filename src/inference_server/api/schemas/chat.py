"""Bodies of `/v1/chat/completions`: messages as strings or text parts, in the OpenAI form."""

from typing import Any, Literal

from pydantic import Field, field_validator

from inference_server.api.schemas.base import RequestBody
from inference_server.api.schemas.sampling import INT32, OpenAIBody
from inference_server.core.errors import UnsupportedParameterError
from inference_server.core.generation import ChatPrompt


class TextPart(RequestBody):
    type: Literal["text"]
    text: str


class ChatMessage(RequestBody):
    """One turn. `developer` is OpenAI's newer name of `system`, which is the one that templates know."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart]
    name: str | None = None
    tool_call_id: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _text_only(cls, value: Any) -> Any:
        for part in value if isinstance(value, list) else ():
            if isinstance(part, dict) and part.get("type", "text") != "text":
                raise UnsupportedParameterError(f"Content parts of type '{str(part['type'])[:64]}' are not supported.", param="messages")
        return value

    def rendered(self) -> dict[str, str]:
        """The message as a chat template takes it. Text parts are joined by a line break."""
        message = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content),
        }
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


def chat_prompt(messages: list[ChatMessage]) -> ChatPrompt:
    return ChatPrompt([message.rendered() for message in messages])


class ChatCompletionBody(OpenAIBody):
    """max_completion_tokens is the newer name of max_tokens and wins over it."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, lt=INT32)

    def sampling_fields(self) -> dict[str, Any]:
        fields = super().sampling_fields()
        return fields if self.max_completion_tokens is None else fields | {"max_tokens": self.max_completion_tokens}
