"""Bodies and grammars that are made to break or to hang whoever reads them."""

import json
from collections.abc import Callable
from typing import Any

USER = [{"role": "user", "content": "a"}]

BODIES: list[Any] = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'{"text": "\xff\xfe"}',
    b"\x00\x01\x02",
    b"[" * 50_000,
    b'{"a":' * 50_000,
    b'{"text": ' + b"9" * 10_000 + b"}",
    {"text": "\ud800"},
    {"text": "a", "max_tokens": -1},
    {"text": "a", "temperature": float("nan")},
    {"text": "a", "chat_template_kwargs": json.loads('{"a":' * 400 + "1" + "}" * 400)},
    {"text": "a", "logit_bias": {str(token): 1 for token in range(5000)}},
    {"messages": USER, "stop": ["x" * 256] * 17},
    {"messages": [{}] * 3000},
    {"messages": USER, "tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(200)]},
    {"prompt": [0] * 100_000},
    {"prompt": [10**9]},
    {"prompt": "a", "n": 10**9},
    {"input": [{"type": "reasoning", "content": []}]},
    {"input": "a", "metadata": {str(key): "v" for key in range(1000)}},
    {"num_users": 10**9},
]


def nested(depth: int, keyword: str) -> str:
    return f'{{"{keyword}":' * depth + "{}" + "}" * depth


GRAMMARS: list[Callable[[], dict[str, Any]]] = [
    lambda: {"regex": "(((a{50}){50}){50})"},
    lambda: {"regex": "((a{0,50}){0,50}){0,50}b"},
    lambda: {"regex": "(((((a?){20}){20}){20}){20}){20}"},
    lambda: {"regex": "(" * 5000 + "a" + ")" * 5000},
    lambda: {"regex": "(a|b)*a(a|b){60}"},
    lambda: {"regex": "[" + "".join(chr(0x4E00 + 2 * i) for i in range(5000)) + "]{200}"},
    lambda: {"regex": "a{100000}"},
    lambda: {"json": nested(3000, "items")},
    lambda: {"json": "[" * 30_000},
    lambda: {"json": {"$ref": "#"}},
    lambda: {"json": {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"items": {"$ref": "#/$defs/a"}}]}}}},
    lambda: {"json": {"type": "string", "pattern": "((a{50}){50}){50}"}},
    lambda: {"json": {"type": "string", "maxLength": 10**9}},
    lambda: {"json": {"type": "array", "minItems": 10**9}},
    lambda: {"json": {"enum": [f"{i} " + "x" * 40 for i in range(1200)]}},
    lambda: {"json": {"type": "object", "properties": {f"key{i}": {"type": "integer", "minimum": i} for i in range(800)}}},
    lambda: {"grammar": "start: " + "(" * 4000 + '"a"' + ")" * 4000},
    lambda: {"grammar": "start: X\nX: /((a{50}){50}){50}/"},
    lambda: {"grammar": 'start: a{50}\na: b{50}\nb: c{50}\nc: "x"{50}'},
    lambda: {"grammar": 'start: start "a"'},
    lambda: {"choice": [f"{i}" * 50 for i in range(1000)]},
]
