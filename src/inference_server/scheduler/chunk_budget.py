"""`ChunkBudget`: how many prompt tokens a step may compute beside decoding requests, by the measured time of past steps.

A step of d seconds with decodes alone may become one of at most 2 d with a share of a prompt in it, so that a long prompt never
doubles its neighbours' time between tokens. The time that n prompt tokens add is fitted as fixed + per_token * n.
"""

from collections import deque
from statistics import median

_ADDED_SHARE = 0.8  # of d; the rest of the second d is for noise, and for attention, whose cost grows along a prompt
_FIRST_TOKENS = 8
_SMALLEST_TOKENS = 4
_GROWTH = 2
_REFRESH_STEPS = 32
_RESCALE_STEPS = 8
_KEEP = 0.9
_MIN_SPREAD = 1e-3


class ChunkBudget:
    """Fed with every collected step; deterministic. Without measurements there is no limit.

    alternating: prompts and decodes take turns in steps of their own, so the time between tokens is a step of each.
    """

    def __init__(self, *, alternating: bool) -> None:
        self._alternating = alternating
        self._measured = False
        self._alone_s: deque[float] = deque(maxlen=5)
        self._alone_scale = self._asked_scale = 0
        self._steps_since_alone = _REFRESH_STEPS
        self._largest = 0
        # Decayed sums over steps with n prompt tokens that added y seconds.
        self._count = self._sum_n = self._sum_y = self._sum_nn = self._sum_ny = 0.0

    def observe(self, num_decodes: int, num_prompt_tokens: int, elapsed_s: float) -> None:
        """A collected step. num_prompt_tokens: without those of chunks of a single token, which cost what a decode does."""
        if elapsed_s <= 0:
            return
        self._measured = True
        if not num_prompt_tokens:
            if _scale(num_decodes) != self._alone_scale:
                self._alone_s.clear()
            self._alone_scale = self._asked_scale = _scale(num_decodes)
            self._alone_s.append(elapsed_s)
            self._steps_since_alone = 0
        elif self._alone_s and (num_decodes or self._alternating):
            self._fit(num_prompt_tokens, max(0.0, elapsed_s - (median(self._alone_s) if num_decodes else 0.0)))

    def limit(self, num_decoding: int) -> int | None:
        """Most prompt tokens of the next step beside so many decoding rows; None for no limit, 0 to measure these rows alone."""
        if not num_decoding or not self._measured:
            return None
        self._steps_since_alone += 1
        stale_after = _REFRESH_STEPS if _scale(num_decoding) == self._asked_scale else _RESCALE_STEPS
        if self._steps_since_alone > stale_after:
            self._steps_since_alone = 0
            self._asked_scale = _scale(num_decoding)
            return 0
        if not self._count:
            return _FIRST_TOKENS
        fixed_s, token_s = self._line()
        room_s = _ADDED_SHARE * median(self._alone_s)
        # Where not even one token fits, the fixed part is the price of any progress, and as much again buys tokens.
        tokens = int((room_s - fixed_s if fixed_s < room_s else fixed_s) / token_s) if token_s else self._largest * _GROWTH
        return max(_SMALLEST_TOKENS, min(tokens, self._largest * _GROWTH))

    def _fit(self, num_tokens: int, added_s: float) -> None:
        self._largest = max(self._largest, num_tokens)
        self._count = self._count * _KEEP + 1
        self._sum_n = self._sum_n * _KEEP + num_tokens
        self._sum_y = self._sum_y * _KEEP + added_s
        self._sum_nn = self._sum_nn * _KEEP + num_tokens * num_tokens
        self._sum_ny = self._sum_ny * _KEEP + num_tokens * added_s

    def _line(self) -> tuple[float, float]:
        """Least squares: fixed seconds and seconds a token; through the origin where the steps were too much alike to tell."""
        spread = self._count * self._sum_nn - self._sum_n**2
        if spread > _MIN_SPREAD * self._count * self._sum_nn:
            token_s = (self._count * self._sum_ny - self._sum_n * self._sum_y) / spread
            fixed_s = (self._sum_y - token_s * self._sum_n) / self._count
            if token_s > 0 and fixed_s > 0:
                return fixed_s, token_s
        return 0.0, self._sum_ny / self._sum_nn


def _scale(num_rows: int) -> int:
    """Row counts of one power of two decode in about the same time."""
    return num_rows.bit_length()
