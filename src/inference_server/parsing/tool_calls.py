"""The markup of one tool call, character by character, in the formats that models use."""

import json
from collections.abc import Callable

from inference_server.parsing.relaxed_json import Malformed, RelaxedJson, Rule, literal, skip_space

MAX_NAME = 256
GEMMA_QUOTE = '<|"|>'


class CallReader:
    """Reads what follows the opening marker of one call. name: empty until it is known; arguments come after it."""

    def __init__(self, rule: "CallRule") -> None:
        self.name = ""
        self.complete = False
        self._text: list[str] = []
        self._arguments: list[str] = []
        self._rule = rule(self)
        next(self._rule)

    @property
    def text(self) -> str:
        """Everything that was read."""
        return "".join(self._text)

    def push(self, text: str) -> int:
        """Read on; returns how many characters of `text` belong to the call. Raises Malformed, with `text` counted as read."""
        self._text.append(text)
        for position, char in enumerate(text):
            try:
                self._rule.send(char)
            except StopIteration:
                self.complete = True
                return position + 1
            except Malformed as error:
                error.give_back += len(text) - position - 1
                raise
        return len(text)

    def take_arguments(self) -> str:
        """The arguments read since the last time: JSON, once the name is known."""
        if not self.name:
            return ""
        arguments, self._arguments = "".join(self._arguments), []
        return arguments

    def emit(self, piece: str) -> None:
        self._arguments.append(piece)


CallRule = Callable[[CallReader], Rule]


def gemma_call(reader: CallReader) -> Rule:
    """`call:name{key:<|"|>text<|"|>,other:[1,true]}<tool_call|>`: Gemma 4."""
    yield from literal("call:", (yield from skip_space((yield))))
    name = ""
    while (char := (yield)) != "{":
        if not (char.isalnum() or char in "_-.") or len(name) == MAX_NAME:
            raise Malformed
        name += char
    if not name:
        raise Malformed
    reader.name = name
    char = yield from RelaxedJson(reader.emit, quote=GEMMA_QUOTE).object(char)
    return (yield from _end("<tool_call|>", char))


def json_call(reader: CallReader) -> Rule:
    """`{"name": "f", "arguments": {...}}</tool_call>`: Hermes and Qwen. The two keys may come in either order."""
    char = yield from skip_space((yield))
    seen: set[str] = set()
    while char != "}" or not seen:
        char = yield from _after("," if seen else "{", char)
        key: list[str] = []
        char = yield from skip_space((yield from RelaxedJson(key.append).string(char)))
        char = yield from _after(":", char)
        match json.loads("".join(key)):
            case "name" if "name" not in seen:
                name: list[str] = []
                char = yield from RelaxedJson(name.append).string(char)
                reader.name = json.loads("".join(name))
                seen.add("name")
            case "arguments" if "arguments" not in seen:
                char = yield from RelaxedJson(reader.emit).object(char)
                seen.add("arguments")
            case _:
                raise Malformed
        char = yield from skip_space(char)
    if not 0 < len(reader.name) <= MAX_NAME:
        raise Malformed
    if "arguments" not in seen:
        reader.emit("{}")
    return (yield from _end("</tool_call>", (yield)))


def _after(wanted: str, char: str) -> Rule:
    if char != wanted:
        raise Malformed
    return (yield from skip_space((yield)))


def _end(closer: str, char: str) -> Rule:
    yield from literal(closer, (yield from skip_space(char)))
    return ""
