"""What fits a grammar, what the compiler refuses by name, and that no input takes long."""

import json
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from byte_grammars import EOS, allows, compiler, fits

from inference_server.core.errors import InvalidRequestError, UnsupportedParameterError
from inference_server.core.grammar import CallForm, CallsSpec, GrammarKind, GrammarSpec
from inference_server.grammar.after_thought import AfterThought


def schema(value: Any) -> GrammarSpec:
    return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(value, separators=(",", ":")), "response_format")


def of_kind(kind: GrammarKind, source: str) -> GrammarSpec:
    return GrammarSpec(kind, source, "structured_outputs")


@pytest.mark.parametrize("choice", ['a"b', "é😀\n", "\u2028", "c\\d", "a", "a b"])
def test_a_choice_is_one_of_its_texts(choice: str) -> None:
    spec = of_kind(GrammarKind.CHOICE, json.dumps(['a"b', "é😀\n", "\u2028", "c\\d", "a", "a b"]))
    assert fits(spec, choice)
    assert not fits(spec, choice + "x")
    assert not fits(spec, "")


def test_a_regular_expression_is_the_whole_text() -> None:
    spec = of_kind(GrammarKind.REGEX, r"\d{3}-[a-z]+")
    assert fits(spec, "123-ab")
    assert not fits(spec, "123-")
    assert not fits(spec, "x123-ab")


@pytest.mark.parametrize("source", ['root ::= "a" b*\nb ::= [x-z]+', 'start: "a" B?\nB: /[x-z]+/'])
def test_a_grammar_in_either_notation(source: str) -> None:
    spec = of_kind(GrammarKind.EBNF, source)
    assert fits(spec, "a")
    assert fits(spec, "axyz")
    assert not fits(spec, "ab")


def test_an_empty_schema_is_any_json() -> None:
    for text in ("[1, 2]", "null", '{"a": {"b": []}}', '"é"', "-1.5e3"):
        assert fits(schema({}), text)
        assert fits(schema(True), text)
    assert not fits(schema({}), "{")
    assert not fits(schema({"type": "object"}), "[]")


def test_white_space_does_not_go_on_for_ever() -> None:
    assert fits(schema({}), '{\n    "a": [\n        1\n    ]\n}')
    assert not fits(schema({}), '{  "a":1}')
    assert not fits(schema({}), '{\n\n"a":1}')
    assert not fits(schema({}), "{\n" + " " * 17 + "}")


def test_no_spelling_of_a_key_passes_its_schema_by() -> None:
    spec = schema({"properties": {"a": {"type": "integer"}}})
    assert not fits(spec, '{"a":"x"}')
    assert not fits(spec, '{"\\u0061":"x"}')
    assert not fits(spec, '{"b":1,"a":"x"}')


NOT_ENFORCED: list[tuple[str, Any]] = [
    ("not", {"not": {"type": "string"}}),
    ("if", {"if": {}, "then": {}}),
    ("uniqueItems", {"properties": {"a": {"items": {"uniqueItems": True}}}}),
    ("contains", {"anyOf": [{"contains": {}}]}),
    ("propertyNames", {"$defs": {"x": {"propertyNames": {}}}}),
    ("dependentRequired", {"additionalProperties": {"dependentRequired": {}}}),
    ("unevaluatedProperties", {"allOf": [{"unevaluatedProperties": False}]}),
    ("minProperties", {"type": "object", "minProperties": 2}),
    ("maxLenght", {"prefixItems": [{"maxLenght": 3}]}),
    ("x-guidance", {"x-guidance": {"lenient": True}}),
]


@pytest.mark.parametrize(("keyword", "value"), NOT_ENFORCED, ids=[keyword for keyword, _ in NOT_ENFORCED])
def test_a_keyword_that_would_not_be_enforced_is_refused_by_name(keyword: str, value: Any) -> None:
    with pytest.raises(UnsupportedParameterError, match=f"'{keyword}'") as caught:
        compiler().compile(schema(value))
    assert caught.value.param == "response_format"


def test_names_and_values_are_no_keywords() -> None:
    value = {"properties": {"uniqueItems": {"enum": [{"not": 1}]}}, "x-vendor": 1, "required": ["uniqueItems"], "type": "object"}
    assert fits(schema(value), '{"uniqueItems": {"not": 1}}')


def nested(keyword: str, depth: int) -> Any:
    value: Any = {"type": "string"}
    for index in range(depth):
        value = {keyword: [value, {"type": "integer", "minimum": index}]}
    return value


def branching(depth: int) -> Any:
    value: Any = {"type": "string"}
    for _ in range(depth):
        value = {"type": "object", "properties": {"a": value, "b": value}, "required": ["a"]}
    return value


BOMBS: list[tuple[str, Callable[[], GrammarSpec]]] = [
    ("deep", lambda: schema(nested("anyOf", 300))),
    ("deeper", lambda: GrammarSpec(GrammarKind.JSON_SCHEMA, '{"items":' * 3000 + "{}" + "}" * 3000, "response_format")),
    ("brackets", lambda: of_kind(GrammarKind.JSON_SCHEMA, "[" * 50_000)),
    ("not JSON", lambda: of_kind(GrammarKind.JSON_SCHEMA, "{")),
    ("branching", lambda: schema(branching(12))),
    ("huge", lambda: schema({"enum": ["x" * 100_000]})),
    ("itself", lambda: schema({"$ref": "#"})),
    ("circle", lambda: schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})),
    ("elsewhere", lambda: schema({"$ref": "http://example.com/schema"})),
    ("control character", lambda: schema({"const": "a\x07"})),
    ("half a character", lambda: schema({"const": "\ud800"})),
    ("half a choice", lambda: of_kind(GrammarKind.CHOICE, json.dumps(["\ud800"]))),
    ("half a regex", lambda: of_kind(GrammarKind.REGEX, "\ud800")),
    ("half a grammar", lambda: of_kind(GrammarKind.EBNF, 'start: "\ud800"')),
    ("nothing", lambda: schema(False)),
    ("no value", lambda: schema({"type": "integer", "minimum": 3, "maximum": 2})),
    ("no schema", lambda: schema([])),
    ("no type", lambda: schema({"type": "strin"})),
    ("look-ahead", lambda: of_kind(GrammarKind.REGEX, "(?=a)b")),
    ("no regex", lambda: of_kind(GrammarKind.REGEX, "[")),
    ("no text", lambda: of_kind(GrammarKind.REGEX, r"[^\s\S]")),
    ("endless", lambda: of_kind(GrammarKind.EBNF, 'start: start "a"')),
    ("no grammar", lambda: of_kind(GrammarKind.EBNF, "root ::= (")),
    ("counted", lambda: of_kind(GrammarKind.REGEX, "(((a{50}){50}){50}){50}")),
    ("counted terminals", lambda: of_kind(GrammarKind.EBNF, 'start: X\nX: A{50}\nA: B{50}\nB: C{50}\nC: "x"{50}')),
    ("long", lambda: schema({"const": "x" * 10_000})),
    ("parentheses", lambda: of_kind(GrammarKind.EBNF, "start: " + "(" * 5000 + '"a"' + ")" * 5000)),
]


@pytest.mark.parametrize("bomb", [bomb for _, bomb in BOMBS], ids=[name for name, _ in BOMBS])
def test_what_cannot_be_used_is_refused_soon(bomb: Callable[[], GrammarSpec]) -> None:
    spec = bomb()
    start = time.thread_time()
    with pytest.raises(InvalidRequestError) as caught:
        compiler().compile(spec)
    assert time.thread_time() - start < 3
    assert caught.value.param == spec.param
    assert len(caught.value.message) < 1000


CHAIN = range(1500)
DEEP = [
    of_kind(GrammarKind.EBNF, "start: r0\n" + "\n".join(f'r{n}: "a" r{n + 1}' for n in range(900)) + '\nr900: "b"'),
    schema({"$ref": "#/$defs/0", "$defs": {**{f"{n}": {"items": {"$ref": f"#/$defs/{n + 1}"}} for n in CHAIN}, "1500": {}}}),
    schema({"$ref": "#/$defs/0", "$defs": {**{f"{n}": {"allOf": [{"$ref": f"#/$defs/{n + 1}"}]} for n in CHAIN}, "1500": {}}}),
]


@pytest.mark.parametrize("spec", DEEP, ids=["rules", "items", "allOf"])
def test_rules_that_refer_on_for_long_do_not_end_the_process(spec: GrammarSpec) -> None:
    state = compiler().compile(spec).start()
    token = next(token for token in (ord("a"), ord("[")) if allows(state, token))
    for _ in range(800):
        state.advance(token, 1000)
    assert allows(state, token)


def test_a_generation_that_takes_too_much_work_fails_alone() -> None:
    grammar = compiler().compile(of_kind(GrammarKind.REGEX, "(a|b)*a(a|b){60}"))
    state, neighbour = grammar.start(), grammar.start()
    random = Random(1)
    with pytest.raises(InvalidRequestError, match="too much work"):
        for _ in range(100_000):
            state.advance(random.choice(b"ab"), 1000)
    for state in (neighbour, grammar.start()):
        state.advance(ord("a"), 1000)
        assert allows(state, ord("b"))


def test_text_that_is_demanded_later_ends_its_generation_where_it_begins() -> None:
    state = compiler().compile(of_kind(GrammarKind.REGEX, f"[ab]c?{'x' * 10_000}")).start()
    state.advance(ord("a"), 1000)
    with pytest.raises(InvalidRequestError, match="more than 8192 bytes"):
        state.advance(ord("c"), 1000)


def test_calls_one_or_several() -> None:
    form = CallForm("<bos>call:f", '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}', "<end>")
    for parallel in (False, True):
        grammar = compiler().compile(CallsSpec((form, CallForm("g", "{}", "")), parallel, "tools"))
        state = grammar.start()
        for token in (256, *b'call:f{"a": 1}<end>'):
            assert allows(state, token)
            state.advance(token, 1000)
        assert allows(state, EOS)
        assert allows(state, 256) == parallel
        assert not allows(grammar.start(), ord("<"))


@pytest.mark.parametrize("in_thought", [False, True])
def test_a_grammar_waits_for_the_end_of_a_thought(in_thought: bool) -> None:
    state = AfterThought(compiler().compile(schema({})).start(), opener=ord("T"), closer=ord("/"), in_thought=in_thought)
    if not in_thought:
        assert allows(state, ord("T"))
        assert not allows(state, ord("x"))
        state.advance(ord("T"), 1000)
    assert state.mask is None
    for token in b"xT/":
        state.advance(token, 1000)
    assert not allows(state, ord("x"))
    assert not allows(state, ord("T"))
    state.advance(ord("1"), 1000)
    assert allows(state, EOS)
