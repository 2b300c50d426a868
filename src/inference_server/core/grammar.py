"""What an answer's text may be, as a value, and what a compiled form of it is to the rest of the server."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class GrammarKind(StrEnum):
    """JSON_SCHEMA: one JSON value. CHOICE: one of a JSON list of texts. EBNF: a context-free grammar in GBNF or Lark."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    EBNF = "grammar"


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """param: the field of the client's request that it came in, for errors to name; part of the value, so that they do."""

    kind: GrammarKind
    source: str
    param: str


@dataclass(frozen=True, slots=True)
class CallForm:
    """How one call is written: `before`, arguments that fit `schema` (JSON), `after`. Special tokens stand by their names."""

    before: str
    schema: str
    after: str


@dataclass(frozen=True, slots=True)
class CallsSpec:
    """The answer is one of these calls, or with `parallel` one or more of them.

    opener: the token that all of them begin with. With it the answer is any text, in which a call must be one of these.
    """

    calls: tuple[CallForm, ...]
    parallel: bool
    param: str
    opener: str = ""


AnswerSpec = GrammarSpec | CallsSpec


class Constraint(Protocol):
    """Where one generation stands in its grammar.

    mask: the tokens that may come next, one bit each, token i being bit i % 8 of byte i // 8, padded to whole 32-bit words; None
    for all. finished: nothing may follow but the end of the text.
    """

    @property
    def mask(self) -> bytes | None: ...

    @property
    def finished(self) -> bool: ...

    def advance(self, token_id: int, num_left: int) -> None:
        """Take the token that came. num_left: how many may still follow; once they only just suffice, `mask` allows only what closes.

        Raises InferenceServerError when the token does not fit, or the grammar takes too much work.
        """
        ...


class CompiledGrammar(Protocol):
    """Any number of generations may start from it, at any time."""

    def start(self) -> Constraint: ...
