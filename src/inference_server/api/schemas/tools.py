"""The functions that a model may call, and its calls in a conversation, in the OpenAI form."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from inference_server.api.schemas.base import Items, RequestBody
from inference_server.core.errors import InvalidRequestError, UnsupportedParameterError

MAX_TOOLS = 128
MAX_SCHEMA_DEPTH = 32

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}

FunctionName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


def _object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type", "object") != "object":
        raise ValueError("the type of a function's parameters is object")
    _check(schema, "parameters", 1)
    return _NO_PARAMETERS | schema


def _check(schema: Any, path: str, depth: int) -> None:
    """Raises ValueError where chat templates would stumble: `schema` has the shape of a JSON schema, whatever it says."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise ValueError(f"{path} is not a JSON schema")
    if depth > MAX_SCHEMA_DEPTH:
        raise ValueError(f"the parameters are nested more than {MAX_SCHEMA_DEPTH} deep")
    types = schema.get("type", [])
    if not _TYPES.issuperset(map(str, types if isinstance(types, list) else [types])):
        raise ValueError(f"{path}.type is not a type of JSON")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise ValueError(f"{path}.required is not a list of names")
    if not isinstance(schema.get("enum", []), list):
        raise ValueError(f"{path}.enum is not a list")
    for key in ("properties", "$defs", "definitions"):
        named = schema.get(key, {})
        if not isinstance(named, dict):
            raise ValueError(f"{path}.{key} is not an object")
        for name, inner in named.items():
            _check(inner, f"{path}.{key}.{name[:64]}", depth + 1)
    for key in ("items", "additionalProperties", "not"):
        _check(schema.get(key, True), f"{path}.{key}", depth + 1)
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        alternatives = schema.get(key, [])
        if not isinstance(alternatives, list):
            raise ValueError(f"{path}.{key} is not a list")
        for inner in alternatives:
            _check(inner, f"{path}.{key}", depth + 1)


class Function(RequestBody):
    """parameters: a JSON schema, shown to the model. Without them, the function has none. strict: enforces them, as a forced call does."""

    name: FunctionName
    description: str | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(_object_schema)] = _NO_PARAMETERS
    strict: bool = False


class Tool(RequestBody):
    type: Literal["function"]
    function: Function


def _functions_only(value: Any) -> Any:
    for tool in value if isinstance(value, list) else ():
        if isinstance(tool, dict) and isinstance(kind := tool.get("type"), str) and kind != "function":
            raise UnsupportedParameterError(f"tools of type '{kind[:64]}' are not supported", param="tools")
    return value


def _different_names(tools: list[Tool]) -> list[Tool]:
    if len({tool.function.name for tool in tools}) < len(tools):
        raise ValueError("two functions have the same name")
    return tools


class FunctionChoice(RequestBody):
    name: FunctionName


class NamedChoice(RequestBody):
    type: Literal["function"]
    function: FunctionChoice


Tools = Annotated[Items[Tool], Field(max_length=MAX_TOOLS), AfterValidator(_different_names), BeforeValidator(_functions_only)]
ToolChoice = Literal["none", "auto", "required"] | NamedChoice


class CalledFunction(RequestBody):
    """arguments: a JSON object, as text."""

    name: str
    arguments: str


class ToolCall(RequestBody):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


def check_choice(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """Raises InvalidRequestError for a choice of what is not there."""
    names = [tool.function.name for tool in tools]
    if isinstance(choice, NamedChoice) and choice.function.name not in names:
        raise InvalidRequestError(f"there is no tool '{choice.function.name}'", param="tool_choice")
    if choice == "required" and not names:
        raise InvalidRequestError("a call is required, and there are no tools", param="tool_choice")


def offered(tools: Sequence[Tool], choice: ToolChoice) -> Sequence[Mapping[str, Any]]:
    """The tools as the chat template gets them. With `none` the model does not see them, and so calls none."""
    return [] if choice == "none" else [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in tools]


def tool_fields(tools: Sequence[Tool], choice: ToolChoice) -> dict[str, Any]:
    """The fields of `ChatPrompt` that say which calls the answer may have, must have, and which of them must fit."""
    names = [tool.function.name for tool in tools]
    strict = [] if choice == "none" else [tool.function.name for tool in tools if tool.function.strict]
    forced = [choice.function.name] if isinstance(choice, NamedChoice) else names if choice == "required" else []
    return {"tools": offered(tools, choice), "forced_calls": forced, "strict_calls": strict}
