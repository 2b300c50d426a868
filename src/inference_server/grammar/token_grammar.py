"""`TokenGrammar` and `GrammarState`: a compiled grammar, and where one generation stands in it."""

from llguidance import LLMatcher

from inference_server.core.errors import InvalidRequestError


class TokenGrammar:
    """A `CompiledGrammar`. first_mask: that of the first token."""

    def __init__(self, matcher: LLMatcher, first_mask: bytes, param: str) -> None:
        self._matcher = matcher
        self._first_mask = first_mask
        self._param = param

    def start(self) -> "GrammarState":
        return GrammarState(self._matcher.deep_copy(), self._first_mask, self._param)


class GrammarState:
    """A `Constraint`. Shares nothing with other generations, so what goes wrong in one stays there."""

    def __init__(self, matcher: LLMatcher, mask: bytes, param: str) -> None:
        self.mask: bytes | None = mask
        self._matcher = matcher
        self._param = param

    def advance(self, token_id: int) -> None:
        if self._matcher.consume_token(token_id):
            self.mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise InvalidRequestError(f"the grammar takes too much work to follow: {self._matcher.stop_reason()}", param=self._param)
