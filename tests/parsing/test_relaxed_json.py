"""Values as models write them, converted to strict JSON. The standard library's parser is the reference."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_server.parsing.relaxed_json import Malformed, RelaxedJson
from inference_server.parsing.tool_calls import GEMMA_QUOTE

TEXT = st.text(max_size=20).filter(lambda text: GEMMA_QUOTE not in text)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def converted(text: str, quote: str | None = None) -> str:
    """The object at the start of `text`, after which one more character follows."""
    pieces: list[str] = []
    rule = RelaxedJson(pieces.append, quote).object(text[0])
    next(rule)
    for position, char in enumerate(text[1:], 2):
        try:
            rule.send(char)
        except StopIteration:
            assert position == len(text)
            return "".join(pieces)
    raise AssertionError("the object does not end")


def gemma(value: Any) -> str:
    match value:
        case dict():
            return "{" + ",".join(f"{GEMMA_QUOTE}{key}{GEMMA_QUOTE}:{gemma(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(map(gemma, value)) + "]"
        case str():
            return f"{GEMMA_QUOTE}{value}{GEMMA_QUOTE}"
        case _:
            return json.dumps(value)


@settings(deadline=None)
@given(st.dictionaries(TEXT, VALUES, max_size=4), st.booleans(), st.sampled_from([None, 1]))
def test_json_stays_what_it_is(value: dict[str, Any], ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert json.loads(converted(text + "<")) == value


@settings(deadline=None)
@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_gemma_becomes_json(value: dict[str, Any]) -> None:
    assert json.loads(converted(gemma(value) + "<", GEMMA_QUOTE)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a:None,b:[None,Nonesuch]}", {"a": None, "b": [None, "Nonesuch"]}),
        ("{a:1, b :true,c:null}", {"a": 1, "b": True, "c": None}),
        ("{city:New York ,time:12:30,n:-1e5}", {"city": "New York", "time": "12:30", "n": -1e5}),
        ('{"a":"x\\n\\u00e9","b":NaN}', {"a": "x\né", "b": "NaN"}),
        ('{a:<|"|><|<|"<|"|>,b:<|"|>say "hi"\n\\<|"|>}', {"a": '<|<|"', "b": 'say "hi"\n\\'}),
        ("{a:[],b:{},c:[[1],{d:2}]}", {"a": [], "b": {}, "c": [[1], {"d": 2}]}),
        ('{"line":"one\ntwo"}', {"line": "one\ntwo"}),
    ],
)
def test_what_models_write(text: str, value: Any) -> None:
    assert json.loads(converted(text + "<", GEMMA_QUOTE)) == value


@pytest.mark.parametrize("text", ["{a:1}", "{'a':1}", '{"a":}', '{"a" 1}', '{"a":01}', '{"a":1 2}', '{"a":[1,]}', '{"a":"\\u12x4"}', "{,}"])
def test_strict_json_is_strict(text: str) -> None:
    with pytest.raises(Malformed):
        converted(text + "<")
