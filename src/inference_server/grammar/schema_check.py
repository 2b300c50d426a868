"""Refuses, by name, a keyword of a JSON schema that the grammar would not enforce.

llguidance refuses the keywords that it knows and does not implement, but ignores those that it does not know, and does not count
different keys. No answer may be promised that does not fit its schema.
"""

from collections.abc import Iterator
from typing import Any

from inference_server.core.errors import InvalidRequestError, UnsupportedParameterError

MAX_DEPTH = 64

_ENFORCED = (
    "type enum const anyOf oneOf allOf $ref properties additionalProperties patternProperties required minProperties maxProperties "
    "items prefixItems additionalItems minItems maxItems minLength maxLength pattern format minimum maximum exclusiveMinimum "
    "exclusiveMaximum multipleOf"
)
_ANNOTATIONS = (
    "$schema $id id $comment $anchor $defs definitions title description default examples example deprecated readOnly writeOnly "
    "contentEncoding contentMediaType contentSchema discriminator externalDocs xml"
)
_KNOWN = frozenset(f"{_ENFORCED} {_ANNOTATIONS}".split())
_ONE = ("items", "additionalItems", "additionalProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")


def check_schema(schema: Any, param: str) -> None:
    """Raises UnsupportedParameterError for a keyword that would not be enforced, InvalidRequestError for a schema too deep."""
    open_schemas = [(schema, 1)]
    while open_schemas:
        inner, depth = open_schemas.pop()
        if not isinstance(inner, dict):
            continue
        if depth > MAX_DEPTH:
            raise InvalidRequestError(f"the JSON schema is nested more than {MAX_DEPTH} deep", param=param)
        if keyword := _not_enforced(inner):
            raise UnsupportedParameterError(
                f"the JSON schema keyword '{keyword[:64]}' is not supported: it would not be enforced", param=param
            )
        open_schemas += ((part, depth + 1) for part in _parts(inner))


def _not_enforced(schema: dict[str, Any]) -> str | None:
    for keyword in schema:
        if keyword not in _KNOWN and not (keyword.startswith("x-") and keyword != "x-guidance"):
            return keyword
    least, required = schema.get("minProperties", 0), schema.get("required", [])
    # An answer may have the same key twice, which counts once for whoever reads the JSON.
    if isinstance(least, int) and isinstance(required, list) and least > max(1, len(required)):
        return "minProperties"
    return None


def _parts(schema: dict[str, Any]) -> Iterator[Any]:
    """The schemas inside; not what only looks like one, such as a value of `enum`."""
    yield from (schema[key] for key in _ONE if key in schema)
    for key in _LISTS:
        parts = schema.get(key)
        yield from parts if isinstance(parts, list) else ()
    for key in _NAMED:
        parts = schema.get(key)
        yield from parts.values() if isinstance(parts, dict) else ()
