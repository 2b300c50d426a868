"""Bodies of `/tokenize` and `/detokenize`, in vLLM's shapes."""

from typing import Self

from pydantic import Field, model_validator

from inference_server.api.schemas.base import Items, RequestBody
from inference_server.api.schemas.chat import MAX_MESSAGES, ChatMessage, TemplateVariables, plain_messages
from inference_server.api.schemas.sampling import Label, TokenId
from inference_server.api.schemas.tools import Tools, offered
from inference_server.core.generation import ChatPrompt


class TokenizeBody(RequestBody):
    """Either a raw prompt or a chat. The default of add_special_tokens is what a generation does: a BOS, but never a second one."""

    model: Label | None = None
    prompt: str | None = None
    messages: Items[ChatMessage] | None = Field(None, min_length=1, max_length=MAX_MESSAGES)
    tools: Tools = Field([])
    chat_template_kwargs: TemplateVariables = Field({})
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("exactly one of prompt and messages is required")
        return self

    def chat_prompt(self) -> ChatPrompt:
        messages = plain_messages(self.messages or [])
        return ChatPrompt(messages, tools=offered(self.tools, "auto"), variables=self.chat_template_kwargs)


class DetokenizeBody(RequestBody):
    model: Label | None = None
    tokens: Items[TokenId]
