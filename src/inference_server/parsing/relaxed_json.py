"""JSON values as models write them, to strict JSON, one character at a time.

A recursive descent that is suspended between characters: each rule is a generator that is sent the next character and returns
the first that it does not consume. Nothing is read twice. Accepted beyond JSON: control characters inside strings, and, where a
format has its own quote, strings between two of these, bare keys, and bare words as strings.
"""

import json
from collections.abc import Callable, Generator
from typing import NoReturn

Rule = Generator[None, str, str]

MAX_DEPTH = 64
_SPACE = " \t\r\n"
_HEX = frozenset("0123456789abcdefABCDEF")
_ESCAPES = frozenset('"\\/bfnrt')
_WORD_ENDS = frozenset(",}]<")
_NO_KEY = frozenset(",{}[]<")


class Malformed(Exception):
    """The text breaks the format. give_back: of the characters sent, the last ones that may mean something else."""

    def __init__(self, give_back: int = 1) -> None:
        super().__init__(give_back)
        self.give_back = give_back


def skip_space(char: str) -> Rule:
    while char in _SPACE:
        char = yield
    return char


def literal(expected: str, char: str) -> Generator[None, str, None]:
    """Exactly `expected`, of which `char` is the first character. Does not wait for a character beyond."""
    for position, wanted in enumerate(expected):
        if position:
            char = yield
        if char != wanted:
            raise Malformed(position + 1)


class RelaxedJson:
    """emit: takes strict JSON in pieces. quote: the format's own, at either end of a string; None for a format that is JSON."""

    def __init__(self, emit: Callable[[str], None], quote: str | None = None) -> None:
        self._emit = emit
        self._quote = quote

    def object(self, char: str, depth: int = 1) -> Rule:
        if char != "{" or depth > MAX_DEPTH:
            raise Malformed
        self._emit(char)
        char = yield from self._space((yield))
        while char != "}":
            char = yield from self._space((yield from self._key(char)))
            char = yield from self._punctuation(":", char)
            char = yield from self._space((yield from self._value(char, depth)))
            if char == "}":
                break
            char = yield from self._punctuation(",", char)
            if char == "}":
                raise Malformed
        self._emit(char)
        return (yield)

    def string(self, char: str) -> Rule:
        """A JSON string."""
        if char != '"':
            raise Malformed
        self._emit(char)
        while (char := (yield)) != '"':
            if char == "\\":
                yield from self._escape()
            else:
                self._emit(char if char >= " " else json.dumps(char)[1:-1])
        self._emit(char)
        return (yield)

    def _array(self, depth: int) -> Rule:
        if depth > MAX_DEPTH:
            raise Malformed
        self._emit("[")
        char = yield from self._space((yield))
        while char != "]":
            char = yield from self._space((yield from self._value(char, depth)))
            if char == "]":
                break
            char = yield from self._punctuation(",", char)
            if char == "]":
                raise Malformed
        self._emit(char)
        return (yield)

    def _value(self, char: str, depth: int) -> Rule:
        if char == "{":
            return (yield from self.object(char, depth + 1))
        if char == "[":
            return (yield from self._array(depth + 1))
        if char == '"':
            return (yield from self.string(char))
        if self._quote and char == self._quote[0]:
            return (yield from self._quoted(self._quote, char))
        return (yield from self._word(char))

    def _key(self, char: str) -> Rule:
        if char == '"' or not self._quote:
            return (yield from self.string(char))
        if char == self._quote[0]:
            return (yield from self._quoted(self._quote, char))
        key = []
        while char != ":":
            if char in _NO_KEY:
                raise Malformed
            key.append(char)
            char = yield
        self._emit(json.dumps("".join(key).rstrip(), ensure_ascii=False))
        return char

    def _quoted(self, quote: str, char: str) -> Rule:
        """A string between two of the format's quotes, whose first character stands nowhere else in them."""
        yield from literal(quote, char)
        self._emit('"')
        num_matched = 0
        while True:
            char = yield
            if char == quote[num_matched]:
                num_matched += 1
                if num_matched == len(quote):
                    self._emit('"')
                    return (yield)
            else:
                text = quote[:num_matched] + char
                num_matched = 1 if char == quote[0] else 0
                self._emit(json.dumps(text[: len(text) - num_matched], ensure_ascii=False)[1:-1])

    def _word(self, char: str) -> Rule:
        """A number, true, false or null; with a quote of its own, a format may have other words, which are strings, but for `None`:
        the templates of such a format write null that way."""
        word = []
        while char not in _WORD_ENDS:
            word.append(char)
            char = yield
        text = "".join(word).rstrip()
        try:
            json.loads(text, parse_constant=_no_constant)
        except ValueError:
            if not (text and self._quote):
                raise Malformed from None
            text = "null" if text == "None" else json.dumps(text, ensure_ascii=False)
        self._emit(text)
        return char

    def _escape(self) -> Generator[None, str, None]:
        char = yield
        text = "\\" + char
        if char == "u":
            for _ in range(4):
                char = yield
                if char not in _HEX:
                    raise Malformed
                text += char
        elif char not in _ESCAPES:
            raise Malformed
        self._emit(text)

    def _punctuation(self, wanted: str, char: str) -> Rule:
        if char != wanted:
            raise Malformed
        self._emit(char)
        return (yield from self._space((yield)))

    def _space(self, char: str) -> Rule:
        while char in _SPACE:
            self._emit(char)
            char = yield
        return char


def _no_constant(name: str) -> NoReturn:
    """NaN and Infinity are Python's, not JSON's."""
    raise ValueError(name)
