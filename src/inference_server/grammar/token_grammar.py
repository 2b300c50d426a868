"""`TokenGrammar` and `GrammarState`: a compiled grammar, and where one generation stands in it.

Generations of one grammar share the automaton of its words, which grows as they go. That saves work, but its limit then counts for all of
them together: a generation that meets the limit tries once more on a new automaton before it fails.
"""

from collections.abc import Callable, Sequence

from llguidance import LLMatcher

from inference_server.core.errors import InvalidRequestError
from inference_server.grammar.closing import Closing

_MAX_DEMANDED = 8 * 1024


def check_demands(matcher: LLMatcher, param: str) -> None:
    """Raises InvalidRequestError where the grammar leaves no choice for a very long text: each of its tokens walks all that is left."""
    if len(matcher.compute_ff_bytes()) > _MAX_DEMANDED:
        raise InvalidRequestError(f"the grammar demands more than {_MAX_DEMANDED} bytes of text at once", param=param)


class TokenGrammar:
    """A `CompiledGrammar`. build: makes a matcher that stands at the start, as `matcher` does. first_mask: the first token's mask.

    closing: what `closing_tokens` returns.
    """

    def __init__(
        self, build: Callable[[], LLMatcher], matcher: LLMatcher, first_mask: bytes, closing: Sequence[int], eos_id: int, param: str
    ) -> None:
        self.matcher = matcher
        self.first_mask = first_mask
        self.param = param
        self.closing = closing
        self.eos_id = eos_id
        self._build = build

    def start(self) -> "GrammarState":
        return GrammarState(self)

    def renew(self, worn: LLMatcher) -> LLMatcher:
        """A matcher at the start that shares nothing with `worn`."""
        if self.matcher is worn:
            self.matcher = self._build()
        return self.matcher


class GrammarState:
    """A `Constraint`. What goes wrong in one generation reaches no other of the same grammar."""

    def __init__(self, grammar: TokenGrammar) -> None:
        self.mask: bytes | None = grammar.first_mask
        self._grammar = grammar
        self._origin = grammar.matcher
        self._matcher = grammar.matcher.deep_copy()
        self._token_ids: list[int] = []
        self._closing = Closing(grammar.closing, grammar.eos_id)

    @property
    def finished(self) -> bool:
        return self._matcher.is_stopped()

    def advance(self, token_id: int, num_left: int) -> None:
        self._token_ids.append(token_id)
        if not self._take([token_id]):
            self._origin = self._grammar.renew(self._origin)
            self._matcher = self._origin.deep_copy()
            if not self._take(self._token_ids):
                self._grammar.renew(self._origin)
                reason = self._matcher.stop_reason()
                raise InvalidRequestError(f"the grammar takes too much work to follow ({reason})", param=self._grammar.param)
        check_demands(self._matcher, self._grammar.param)
        self._close(num_left)

    def _close(self, num_left: int) -> None:
        if self.mask is None or self.finished:
            return
        token_id = self._closing.next_token(self._matcher, num_left)
        if token_id is not None:
            index, bit = divmod(token_id, 8)
            self.mask = bytes(index) + bytes([1 << bit]) + bytes(len(self.mask) - index - 1)

    def _take(self, token_ids: list[int]) -> bool:
        if not self._matcher.consume_tokens(token_ids):
            return False
        self.mask = self._matcher.compute_bitmask()
        return not self._matcher.is_error()
