"""What a client may ask an answer to fit: OpenAI's formats, and vLLM's `structured_outputs`."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from inference_server.api.schemas.base import RequestBody
from inference_server.core.grammar import GrammarKind, GrammarSpec

MAX_CHOICES = 1024

FormatName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
FormatKind = Literal["text", "json_object", "json_schema"]
Schema = dict[str, Any]

_ANY_OBJECT: Schema = {"type": "object"}


class JsonSchema(RequestBody):
    """strict: changes nothing, since every schema is enforced. Without a schema, any JSON fits."""

    name: FormatName
    description: str | None = None
    schema_: Schema = Field({}, alias="schema")
    strict: bool = False


class ResponseFormat(RequestBody):
    """OpenAI's `response_format`."""

    type: FormatKind
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with the type json_schema, and with no other")
        return self

    def grammar(self) -> GrammarSpec | None:
        schema = self.json_schema.schema_ if self.json_schema else _ANY_OBJECT
        return None if self.type == "text" else schema_spec(schema, "response_format")


class TextFormat(RequestBody):
    """`text.format` of `/v1/responses`: the same, flat."""

    type: FormatKind
    name: FormatName | None = None
    description: str | None = None
    schema_: Schema = Field({}, alias="schema")
    strict: bool = False

    def grammar(self) -> GrammarSpec | None:
        schema = self.schema_ if self.type == "json_schema" else _ANY_OBJECT
        return None if self.type == "text" else schema_spec(schema, "text")


class StructuredOutputs(RequestBody):
    """Exactly one of these. json: a schema, or the text of one. choice: texts, of which the answer is one."""

    json_: Schema | str | None = Field(None, alias="json")
    json_object: bool = False
    regex: Annotated[str, Field(min_length=1)] | None = None
    choice: list[Annotated[str, Field(min_length=1)]] | None = Field(None, min_length=1, max_length=MAX_CHOICES)
    grammar_: Annotated[str, Field(min_length=1)] | None = Field(None, alias="grammar")

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        asked = [self.json_ is not None, self.json_object, self.regex is not None, self.choice is not None, self.grammar_ is not None]
        if sum(asked) != 1:
            raise ValueError("exactly one of json, json_object, regex, choice and grammar is required")
        return self

    def grammar(self) -> GrammarSpec:
        param = "structured_outputs"
        if self.regex is not None:
            return GrammarSpec(GrammarKind.REGEX, self.regex, param)
        if self.choice is not None:
            return GrammarSpec(GrammarKind.CHOICE, json.dumps(self.choice), param)
        if self.grammar_ is not None:
            return GrammarSpec(GrammarKind.EBNF, self.grammar_, param)
        if isinstance(self.json_, str):
            return GrammarSpec(GrammarKind.JSON_SCHEMA, self.json_, param)
        return schema_spec(_ANY_OBJECT if self.json_ is None else self.json_, param)


def schema_spec(schema: Schema, param: str) -> GrammarSpec:
    """The order of keys is part of the grammar: an answer has its properties in the order of the schema."""
    return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema), param)
