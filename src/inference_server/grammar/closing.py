"""How an answer may be ended soon: a short way from where a grammar stands to its end.

The way is found greedily, by what closes first, and walked to its end: so it exists, and its length is an upper bound of the shortest
way's. The search costs a few microseconds a token, and is repeated only when the tokens that are left could have become too few for the
way meanwhile.
"""

from collections.abc import Sequence

from llguidance import LLMatcher

_MAX_TOKENS = 256
_MARGIN = 4  # tokens by which the way may grow between two looks
# What ends a JSON value, then what it takes to get there; letters and digits for patterns; white space never leads to an end.
_PREFERRED = b'"}],:0123456789-.abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZntf[{T_/'


def closing_tokens(tokens: Sequence[bytes]) -> list[int]:
    """The ids of the tokens that are a single preferred byte, in the order of preference."""
    ids = {token: index for index, token in enumerate(tokens) if len(token) == 1}
    return [ids[byte] for value in dict.fromkeys(_PREFERRED) if (byte := bytes([value])) in ids]


def way_out(matcher: LLMatcher, closing: Sequence[int]) -> list[int] | None:
    """Tokens after which the answer may end; None where no short way is found."""
    ahead, way = matcher.deep_copy(), list[int]()
    while not ahead.is_accepting():
        token_ids = ahead.compute_ff_tokens() or [next((token for token in closing if ahead.validate_tokens([token])), -1)]
        way += token_ids
        if len(way) > _MAX_TOKENS or token_ids[-1] < 0 or not ahead.consume_tokens(token_ids):
            return None
    return way


class Closing:
    """The closing of one answer."""

    def __init__(self, closing: Sequence[int], eos_id: int) -> None:
        self._closing = closing
        self._eos_id = eos_id
        self._way: list[int] = []
        self._look_at: int | None = None  # tokens left at the next look; None before the first

    def next_token(self, matcher: LLMatcher, num_left: int) -> int | None:
        """The only token that may come now; None while any may. num_left: tokens that may still come, this one included."""
        if self._way:
            return self._way.pop(0)
        if self._look_at is not None and num_left > self._look_at:
            return None
        way = way_out(matcher, self._closing)
        if way is None:
            self._look_at = num_left // 2
            return None
        num_needed = len(way) + 1  # the end of text is a token as well
        if num_needed <= num_left <= num_needed + _MARGIN:
            self._way = [*way, self._eos_id]
            return self._way.pop(0)
        self._look_at = num_left - max(1, (num_left - num_needed - _MARGIN) // 2)
        return None
