"""Body of `/v1/responses`: a text, or a whole conversation as items. Nothing is kept here that a request could refer to."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from inference_server.api.schemas.base import Items, RequestBody, at_most
from inference_server.api.schemas.chat import MAX_MESSAGES, ReasoningEffort, TemplateVariables
from inference_server.api.schemas.sampling import INT32, Label, SamplingBody
from inference_server.api.schemas.structured import TextFormat
from inference_server.api.schemas.tools import ToolChoice, Tools, check_choice, tool_fields
from inference_server.core.errors import UnsupportedParameterError
from inference_server.core.generation import ChatPrompt
from inference_server.core.grammar import GrammarSpec

MAX_METADATA = 16

_ITEMS = ("message", "function_call", "function_call_output", "reasoning")


class Part(RequestBody):
    """annotations and logprobs: of an earlier answer, sent back as they came, and not looked at."""

    type: Literal["input_text", "output_text", "reasoning_text"]
    text: str
    annotations: list[Any] = Field([])
    logprobs: list[Any] = Field([])


def _texts_only(value: Any) -> Any:
    for part in value if isinstance(value, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("input_image", "input_file", "input_audio"):
            raise UnsupportedParameterError(f"content parts of type '{kind}' are not supported", param="input")
    return value


Content = Annotated[str | Items[Part], BeforeValidator(_texts_only)]


class Item(RequestBody):
    """id and status: as for `annotations`."""

    id: Label | None = None
    status: Label | None = None


class MessageItem(Item):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class CallItem(Item):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class ResultItem(Item):
    type: Literal["function_call_output"]
    call_id: str
    output: Content


class ReasoningItem(Item):
    type: Literal["reasoning"]
    summary: list[Any] = Field([])
    content: Items[Part] = Field([])


def _kind(item: Any) -> str | None:
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)
    if isinstance(kind, str) and kind not in _ITEMS:
        raise UnsupportedParameterError(f"items of type '{kind[:64]}' are not supported", param="input")
    return kind if isinstance(kind, str) else None


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[ResultItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind, custom_error_type="item_type", custom_error_message="Input should be an item with a type"),
]


class Reasoning(RequestBody):
    effort: ReasoningEffort | None = None


class TextConfig(RequestBody):
    format: TextFormat | None = None


class EventOptions(RequestBody):
    """Nothing but hints."""


class ResponsesBody(SamplingBody):
    """The sampling parameters that OpenAI's route does not know are this server's, as on the other routes."""

    input: Annotated[str, Field(min_length=1)] | Annotated[Items[InputItem], Field(min_length=1, max_length=MAX_MESSAGES)]
    model: Label | None = None
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, lt=INT32)
    tools: Tools = Field([])
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    reasoning: Reasoning = Reasoning()
    text: TextConfig = TextConfig()
    metadata: Annotated[dict[str, str], at_most(MAX_METADATA)] = Field({})
    stream_options: EventOptions | None = None
    chat_template_kwargs: TemplateVariables = Field({})
    user: Label = ""

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _choice_as_in_a_chat(cls, value: Any) -> Any:
        """A function is chosen by its name, which is flat here as well."""
        return _nested(value)

    @model_validator(mode="after")
    def _may_choose(self) -> Self:
        check_choice(self.tools, self.tool_choice)
        if self.structured_outputs is not None and self.text.format is not None and self.text.format.type != "text":
            raise ValueError("text.format and structured_outputs exclude each other")
        return self

    @field_validator("tools", mode="before")
    @classmethod
    def _as_in_a_chat(cls, value: Any) -> Any:
        """A function is flat here: its name and parameters stand beside its type."""
        return [_nested(tool) for tool in value] if isinstance(value, list) else value

    def sampling_fields(self) -> dict[str, Any]:
        fields = super().sampling_fields()
        return fields if self.max_output_tokens is None else fields | {"max_tokens": self.max_output_tokens}

    def grammar(self) -> GrammarSpec | None:
        return super().grammar() or (self.text.format.grammar() if self.text.format else None)

    def prompt(self) -> ChatPrompt:
        instructions = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        said = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else _messages(self.input)
        return ChatPrompt(
            instructions + said,
            **tool_fields(self.tools, self.tool_choice),
            parallel_tool_calls=self.parallel_tool_calls,
            variables=self.chat_template_kwargs,
            reasoning_effort=self.reasoning.effort,
            param="input",
        )


def _nested(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type") != "function" or "function" in tool:
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _messages(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Items as chat messages: what the assistant said, thought and called in a row is one message."""
    messages: list[dict[str, Any]] = []
    for item in items:
        match item:
            case ResultItem():
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
            case MessageItem() if item.role != "assistant":
                messages.append({"role": item.role, "content": _text(item.content)})
            case MessageItem():
                _turn(messages)["content"] += _text(item.content)
            case ReasoningItem():
                turn = _turn(messages)
                turn["reasoning_content"] = turn.get("reasoning_content", "") + _text(item.content)
            case CallItem():
                function = {"name": item.name, "arguments": item.arguments}
                _turn(messages).setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
    return messages


def _turn(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message at the end, which is begun if there is none."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _text(content: str | list[Part]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
