"""`AnswerParser`: the text of one answer, as it comes, to visible text, thoughts and tool calls.

No character is lost or sent twice, and no result depends on where the text was split. Held back is only what may turn out to be a
marker. A call goes out as it is read; if its markup breaks, or the answer ends inside, the markup comes back as visible text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from inference_server.core.outputs import CallState, ToolCallDelta
from inference_server.core.request import AnswerMode
from inference_server.parsing.dialect import Dialect
from inference_server.parsing.relaxed_json import Malformed
from inference_server.parsing.tool_calls import CallReader


@dataclass(frozen=True, slots=True)
class Thought:
    text: str


Part = str | Thought | ToolCallDelta


class AnswerParser:
    """num_calls: complete ones. num_thought_pushes: pushes that had part in a thought, its markers included; where a push is one
    token, the tokens of thoughts."""

    def __init__(self, dialect: Dialect, mode: AnswerMode) -> None:
        self.num_calls = 0
        self.num_thought_pushes = 0
        self._thought = dialect.thought
        self._calls = dialect.calls if mode.tools else None
        self._max_calls = None if mode.parallel else 1
        self._in_thought = self._touched_thought = mode.in_thought
        self._at_start = not mode.in_thought
        self._trims = mode.in_thought
        self._is_plain = False  # amid visible text
        self._held = ""
        self._num_undecided = 0
        self._reader: CallReader | None = None
        self._index = -1
        self._announced = False
        self._openers = [self._calls.opener] if self._calls else []
        if self._thought and self._thought.anywhere:
            self._openers.append(self._thought.opener)

    @property
    def finished(self) -> bool:
        """Whether the answer has all the calls that it may have."""
        return self.num_calls == self._max_calls

    def push(self, text: str) -> list[Part]:
        """Take more text; returns what is decided, in order."""
        if self._is_plain and not self._held and "<" not in text:
            return [text] if text else []
        parts: list[Part] = []
        if text:
            rest, self._held = self._held + text, ""
            while rest and not self.finished:
                if self._reader is not None:
                    rest = self._read_call(self._reader, rest, parts)
                elif self._in_thought:
                    rest = self._read_thought(rest, parts)
                else:
                    rest = self._read_visible(rest, parts)
        self._count()
        return parts

    def flush(self) -> list[Part]:
        """The end of the text: what was held back."""
        parts: list[Part] = []
        if self._reader is not None:
            self._break_call(self._reader, 0, parts)
        elif self._held:
            parts.append(Thought(self._held) if self._in_thought else self._held)
        self._held = ""
        return parts

    def _read_visible(self, text: str, parts: list[Part]) -> str:
        """Each of these takes what it can from the start of `text` and returns the rest."""
        if self._trims and not (text := text.lstrip("\n")):
            return ""
        self._trims = False
        if self._at_start and self._thought is not None:
            opener = self._thought.opener
            if text.startswith(opener):
                return self._open_thought(text[len(opener) :])
            if opener.startswith(text):
                self._held = text
                return ""
        self._at_start, self._is_plain = False, True
        at, opener = _first(text, self._openers)
        if not opener:
            at = len(text) - _num_undecided(text, self._openers)
            self._held = text[at:]
        if at:
            parts.append(text[:at])
        if not opener:
            return ""
        self._is_plain = False
        if self._calls is not None and opener == self._calls.opener:
            self._reader = CallReader(self._calls.rule)
            return text[at + len(opener) :]
        return self._open_thought(text[at + len(opener) :])

    def _open_thought(self, text: str) -> str:
        self._in_thought = self._touched_thought = self._trims = True
        self._at_start = False
        return text

    def _read_thought(self, text: str, parts: list[Part]) -> str:
        assert self._thought is not None
        if self._trims and not (text := text.lstrip("\n")):
            return ""
        closer = self._thought.closer
        at, found = _first(text, (closer,))
        if not found:
            at = len(text) - _num_undecided(text, (closer,))
        thought = text[:at].rstrip("\n")
        if thought:
            self._trims = False
            parts.append(Thought(thought))
        if not found:
            self._held = text[len(thought) :]
            return ""
        self._in_thought, self._trims = False, True
        return text[at + len(closer) :]

    def _read_call(self, reader: CallReader, text: str, parts: list[Part]) -> str:
        try:
            num_read = reader.push(text)
        except Malformed as error:
            return self._break_call(reader, error.give_back, parts)
        arguments = reader.take_arguments()
        state = CallState.COMPLETE if reader.complete else CallState.OPEN
        if reader.name and not self._announced:
            self._announced = True
            self._index += 1
            parts.append(ToolCallDelta(self._index, f"call_{uuid4().hex[:24]}", reader.name, arguments, state))
        elif arguments or reader.complete:
            parts.append(ToolCallDelta(self._index, arguments=arguments, state=state))
        if reader.complete:
            self.num_calls += 1
            self._reader, self._announced, self._trims = None, False, True
        return text[num_read:]

    def _break_call(self, reader: CallReader, num_back: int, parts: list[Part]) -> str:
        assert self._calls is not None
        if self._announced:
            parts.append(ToolCallDelta(self._index, state=CallState.BROKEN))
        self._reader, self._announced = None, False
        markup = self._calls.opener + reader.text
        at = len(markup) - num_back
        parts.append(markup[:at])
        return markup[at:]

    def _count(self) -> None:
        """A push that is held back may be the start of a thought."""
        if self._touched_thought:
            self.num_thought_pushes += 1 + self._num_undecided
            self._num_undecided = 0
        else:
            self._num_undecided = self._num_undecided + 1 if self._held else 0
        self._touched_thought = self._in_thought


def _first(text: str, markers: Sequence[str]) -> tuple[int, str]:
    """Where the first marker begins, and which; (0, "") without one."""
    found = [(at, marker) for marker in markers if (at := text.find(marker)) >= 0]
    return min(found, default=(0, ""))


def _num_undecided(text: str, markers: Sequence[str]) -> int:
    """Length of the longest suffix that may be the start of a marker. All begin with `<`, and have no other."""
    at = text.rfind("<")
    return len(text) - at if at >= 0 and any(marker.startswith(text[at:]) for marker in markers) else 0
