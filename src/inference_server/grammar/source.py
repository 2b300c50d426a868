"""Turns what a client asks for into the text of a grammar that llguidance compiles."""

import json
import re
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from inference_server.core.errors import InvalidRequestError
from inference_server.core.grammar import AnswerSpec, CallForm, CallsSpec, GrammarKind
from inference_server.grammar.schema_check import check_schema

# A space, or a line's end and its indentation: white space cannot go on for ever. Without \u escapes a key has one spelling, so that
# none can be smuggled past the schema, and there are no lone surrogates.
_JSON_OPTIONS = {"whitespace_pattern": r" |\n[ \t]{0,16}", "json_allowed_escapes": 'nrbtf\\"'}
_UNWRITABLE = re.compile(r"(?<!\\)(?:\\\\)*\\u00[01]")  # as JSON spells a control character


def grammar_text(spec: AnswerSpec, special_tokens: Mapping[str, int]) -> str:
    """special_tokens: ids by name. Raises InvalidRequestError for what is no schema, list or grammar at all."""
    if isinstance(spec, CallsSpec):
        return _calls(spec, special_tokens)
    match spec.kind:
        case GrammarKind.JSON_SCHEMA:
            return LLMatcher.grammar_from_json_schema(json.dumps(_checked(spec.source, spec.param)))
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(spec.source)
        case GrammarKind.CHOICE:
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(_quoted, json.loads(spec.source))))
        case GrammarKind.EBNF:
            try:
                return LLMatcher.grammar_from_lark(any_to_lark(spec.source))
            except Exception as error:  # the library raises bare Exception
                raise InvalidRequestError(f"the grammar cannot be read: {error}", param=spec.param) from error


def _calls(spec: CallsSpec, special_tokens: Mapping[str, int]) -> str:
    names = [f"call_{index}" for index in range(len(spec.calls))]
    rules = [f"{name}: {_call(call, spec.param, special_tokens)}" for name, call in zip(names, spec.calls, strict=True)]
    start = f"start: ({' | '.join(names)}){'+' if spec.parallel else ''}"
    return LLMatcher.grammar_from_lark("\n".join([start, *rules]))


def _call(call: CallForm, param: str, special_tokens: Mapping[str, int]) -> str:
    arguments = json.dumps(_checked(call.schema, param))
    return f"{_literal(call.before, special_tokens)} %json {arguments} {_literal(call.after, special_tokens)}"


def _checked(source: str, param: str) -> Any:
    """The schema, with our options for white space and escapes; `true` says the same as `{}`."""
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the JSON schema cannot be read: {error}", param=param) from error
    check_schema(schema, param)
    if _UNWRITABLE.search(json.dumps(schema)):
        raise InvalidRequestError("the JSON schema has a control character, and answers are written without \\u escapes", param=param)
    if schema is True:
        schema = {}
    return {**schema, "x-guidance": _JSON_OPTIONS} if isinstance(schema, dict) else schema


def _literal(text: str, special_tokens: Mapping[str, int]) -> str:
    """`text` as grammar, where the name of a special token stands for the token."""
    if not special_tokens:
        return _quoted(text)
    pieces = re.split("(" + "|".join(map(re.escape, special_tokens)) + ")", text)
    return " ".join(f"<[{special_tokens[piece]}]>" if piece in special_tokens else _quoted(piece) for piece in pieces if piece)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
