"""`TokenGrammar` and `GrammarState`: a compiled grammar, and where one generation stands in it.

Generations of one grammar share the automaton of its words, which grows as they go; that saves work, and its limit is for all of them
together. So whoever meets the limit tries again on a new automaton before it counts as its own.
"""

from collections.abc import Callable

from llguidance import LLMatcher

from inference_server.core.errors import InvalidRequestError


class TokenGrammar:
    """A `CompiledGrammar`. build: makes a matcher at the start. first_mask: that of the first token."""

    def __init__(self, build: Callable[[], LLMatcher], matcher: LLMatcher, first_mask: bytes, param: str) -> None:
        self.matcher = matcher
        self.first_mask = first_mask
        self.param = param
        self._build = build

    def start(self) -> "GrammarState":
        return GrammarState(self)

    def renew(self, worn: LLMatcher) -> LLMatcher:
        """A matcher at the start that shares nothing with `worn`."""
        if self.matcher is worn:
            self.matcher = self._build()
        return self.matcher


class GrammarState:
    """A `Constraint`. What goes wrong in one generation stays there."""

    def __init__(self, grammar: TokenGrammar) -> None:
        self.mask: bytes | None = grammar.first_mask
        self._grammar = grammar
        self._origin = grammar.matcher
        self._matcher = grammar.matcher.deep_copy()
        self._token_ids: list[int] = []

    def advance(self, token_id: int) -> None:
        self._token_ids.append(token_id)
        if not self._take([token_id]):
            self._origin = self._grammar.renew(self._origin)
            self._matcher = self._origin.deep_copy()
            if not self._take(self._token_ids):
                self._grammar.renew(self._origin)
                reason = self._matcher.stop_reason()
                raise InvalidRequestError(f"the grammar takes too much work to follow ({reason})", param=self._grammar.param)

    def _take(self, token_ids: list[int]) -> bool:
        if not self._matcher.consume_tokens(token_ids):
            return False
        self.mask = self._matcher.compute_bitmask()
        return not self._matcher.is_error()
