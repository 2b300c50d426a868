"""Hundreds of random JSON schemas: the engine's answers fit them, on a model whose tokens mean nothing."""

import json
from collections import Counter
from typing import Any

import jsonschema
import pytest
from constrained_runs import CLOSING, answers, compiled, engine_on, request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_server.backends.fake_backend import FakeBackend
from inference_server.core.errors import InvalidRequestError
from inference_server.core.request import FinishReason

NUM_SCHEMAS = 500
SCALARS = st.one_of(
    st.fixed_dictionaries({"type": st.just("string")}, optional={"minLength": st.integers(0, 3), "maxLength": st.integers(3, 9)}),
    st.fixed_dictionaries({"type": st.just("integer")}, optional={"minimum": st.integers(-50, 0), "maximum": st.integers(0, 50)}),
    st.fixed_dictionaries({"type": st.just("integer"), "multipleOf": st.integers(1, 9)}, optional={"minimum": st.integers(-50, 0)}),
    st.fixed_dictionaries({"type": st.just("number")}, optional={"exclusiveMinimum": st.integers(-50, 0), "maximum": st.integers(1, 50)}),
    st.fixed_dictionaries({"type": st.sampled_from([["string", "null"], ["integer", "boolean"]])}),
    st.fixed_dictionaries({"type": st.just("string"), "format": st.sampled_from(["date", "time", "uuid", "ipv4", "date-time"])}),
    st.fixed_dictionaries({"type": st.just("string"), "pattern": st.sampled_from(["^[a-c]{2,4}$", "^a+b?$", "x", "^(ab|c)*$"])}),
    st.fixed_dictionaries({"enum": st.lists(st.one_of(st.text(max_size=4), st.integers(), st.none()), min_size=1, max_size=4)}),
    st.fixed_dictionaries({"const": st.one_of(st.text(max_size=4), st.booleans(), st.lists(st.integers(), max_size=2))}),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {}, {"not": {}}, {"type": "array", "uniqueItems": True}]),
)
NAMES = st.text(st.sampled_from('abé"\\ '), max_size=3)


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(NAMES, inner, max_size=4)
    objects = st.builds(
        lambda named, flags, extra: {
            "type": "object",
            "properties": named,
            "required": [name for name, flag in zip(named, flags, strict=False) if flag],
            "additionalProperties": extra,
        },
        properties,
        st.lists(st.booleans(), min_size=4, max_size=4),
        st.one_of(st.booleans(), inner),
    )
    arrays = st.fixed_dictionaries(
        {"type": st.just("array"), "items": inner}, optional={"minItems": st.integers(0, 2), "maxItems": st.integers(2, 3)}
    )
    tuples = st.builds(lambda items: {"type": "array", "prefixItems": items, "items": False}, st.lists(inner, min_size=1, max_size=3))
    unions = st.builds(
        lambda key, parts: {key: parts}, st.sampled_from(["anyOf", "oneOf", "allOf"]), st.lists(inner, min_size=1, max_size=2)
    )
    return st.one_of(objects, arrays, tuples, unions)


SCHEMAS = st.recursive(SCALARS, larger, max_leaves=6)


@pytest.fixture(scope="module")
def outcomes(pytestconfig: pytest.Config) -> Any:
    """Counts the outcomes of the schemas, and shows them whether the tests pass or not."""
    counts: Counter[str] = Counter()
    yield counts
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\nJSON schemas: {dict(counts)}")  # noqa: T201
    assert counts.total() >= NUM_SCHEMAS
    assert counts["refused"] <= 0.2 * counts.total()


@settings(max_examples=NUM_SCHEMAS, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(schema=SCHEMAS)
def test_every_finished_answer_fits_its_schema(outcomes: Counter[str], schema: Any) -> None:
    try:
        grammar = compiled(schema)
    except InvalidRequestError:
        outcomes["refused"] += 1
        return
    backend = FakeBackend(alphabet=CLOSING, supports_overlap=True)
    whole = answers(engine_on(backend), request("r", grammar))["r"]
    assert whole.error is None
    if whole.finish_reason is FinishReason.LENGTH:
        outcomes["cut"] += 1
        return
    outcomes["finished"] += 1
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(["uuid", "ipv4"]))
    validator.validate(json.loads(whole.text))
