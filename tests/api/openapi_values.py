"""hypothesis strategies for the bodies that an OpenAPI document describes, and for bodies that are nearly so."""

from typing import Any

from hypothesis import strategies as st

Document = dict[str, Any]
Values = st.SearchStrategy[Any]

JSON: Values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)


def resolved(schema: Any, document: Document) -> Any:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def values(schema: Any, document: Document) -> Values:
    """Values that the schema allows. It knows those keywords of JSON Schema that pydantic writes."""
    schema = resolved(schema, document)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return st.one_of([st.deferred(lambda part=part: values(part, document)) for part in schema[key]])
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "string":
            size = {"min_size": schema.get("minLength", 0), "max_size": min(schema.get("maxLength", 12), 12)}
            return st.from_regex(schema["pattern"], fullmatch=False) if "pattern" in schema else st.text(**size)
        case "integer" | "number" as kind:
            return _numbers(schema, kind)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "array":
            return st.lists(values(schema.get("items", {}), document), min_size=schema.get("minItems", 0), max_size=3)
        case "object":
            return _objects(schema, document)
    return JSON


def nearly(body: Values) -> Values:
    """Bodies in which one value, or one further field, may be anything."""

    def spoil(body: Any, key: str, value: Any) -> Any:
        return {**body, key: value} if isinstance(body, dict) else value

    return body.flatmap(lambda found: st.builds(spoil, st.just(found), st.sampled_from([*found, "unknown"]) if found else st.text(), JSON))


def _numbers(schema: Any, kind: str) -> Values:
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum", schema.get("exclusiveMaximum"))
    if kind == "integer":
        high = None if high is None else high - ("exclusiveMaximum" in schema)
        return st.integers(low, high) if low is None else st.one_of(st.integers(low, low + 4), st.integers(low, high))
    return st.floats(low, high, exclude_min="exclusiveMinimum" in schema, allow_nan=False, allow_infinity=False)


def _objects(schema: Any, document: Document) -> Values:
    named = {name: st.deferred(lambda part=part: values(part, document)) for name, part in schema.get("properties", {}).items()}
    required = {name: named.pop(name) for name in schema.get("required", ())}
    more = schema.get("additionalProperties", False)
    if not named and not required and more:
        return st.dictionaries(st.text(max_size=4), JSON if more is True else values(more, document), max_size=3)
    few = st.lists(st.sampled_from(sorted(named)), unique=True, max_size=2) if named else st.just([])
    return few.flatmap(lambda names: st.fixed_dictionaries(required | {name: named[name] for name in names}))
