"""`ChunkBudget`: how many prompt tokens a step may compute beside decoding requests, by the measured time of past steps.

A step of d seconds with decodes alone may become one of at most 2 d with a part of a prompt in it, so that a long prompt at most
doubles its neighbours' time between tokens, and not on average but in about 99 steps of 100. Where 2 d is too short for anybody to
notice, it may become one of `unnoticed_s`. There is no model of what tokens cost. Their number is steered by the time that chunks added,
towards a share of what they may add. That share falls with every step that added too much and creeps up with every other, so it settles
where about one step in a hundred is too long, however much the steps of this machine scatter.
"""

from collections import deque
from math import exp
from statistics import median

_FIRST_SHARE, _LEAST_SHARE, _MOST_SHARE = 0.75, 0.3, 0.85
_TOO_LONG, _IN_TIME = 0.95, 1.0005  # a step's factor on the share: in balance if one step in 100 is too long
_GAIN, _FAR_BELOW = 0.25, 0.3
_FIRST_TOKENS = 8
_SMALLEST_TOKENS = 2
_LEAST_PROGRESS = 1.1
_NEW_WEIGHT = 0.2
_REFRESH_STEPS = 32
_RESCALE_STEPS = 8


class ChunkBudget:
    """Fed with every collected step; deterministic. Without measurements there is no limit.

    alternating: prompts and decodes take turns in steps of their own, so the time between tokens is a step of each.
    unnoticed_s: a time between tokens that is always short enough, even if it is more than twice the one without the prompt.
    """

    def __init__(self, *, alternating: bool, unnoticed_s: float = 0.0) -> None:
        self._alternating = alternating
        self._unnoticed_s = unnoticed_s
        self._measured = False
        self._alone_s: deque[float] = deque(maxlen=9)
        self._alone_scale = self._asked_scale = 0
        self._steps_since_alone = _REFRESH_STEPS
        self._tokens = float(_FIRST_TOKENS)
        self._share = _FIRST_SHARE
        self._smallest_s = 0.0  # what the smallest chunk adds, 0 while there was no need for one

    def observe(self, num_decodes: int, num_prompt_tokens: int, elapsed_s: float) -> None:
        """Take in a collected step. Chunks of a single token cost what a decode does and count as one, not in num_prompt_tokens."""
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
            alone_s = median(self._alone_s)
            may_add_s = max(alone_s, self._unnoticed_s - alone_s)
            self._adapt(num_prompt_tokens, max(0.0, elapsed_s - (alone_s if num_decodes else 0.0)), may_add_s)

    def limit(self, num_decoding: int) -> int | None:
        """Most prompt tokens of the next step beside `num_decoding` rows; None for no limit, 0 to measure these rows alone."""
        if not num_decoding or not self._measured:
            return None
        self._steps_since_alone += 1
        stale_after = _REFRESH_STEPS if _scale(num_decoding) == self._asked_scale else _RESCALE_STEPS
        if self._steps_since_alone > stale_after:
            self._steps_since_alone = 0
            self._asked_scale = _scale(num_decoding)
            return 0
        return int(self._tokens)

    def _adapt(self, num_tokens: int, added_s: float, may_add_s: float) -> None:
        """Steer the share and the tokens by what a chunk of `num_tokens` added.

        Where even the smallest chunk adds more than it may, the target is a little above what it adds: else prompts would stand still.
        """
        if num_tokens <= _SMALLEST_TOKENS:
            self._smallest_s += (_NEW_WEIGHT if self._smallest_s else 1.0) * (added_s - self._smallest_s)
        target_s = max(self._share * may_add_s, _LEAST_PROGRESS * self._smallest_s)
        share = self._share * (_TOO_LONG if added_s > max(may_add_s, target_s) else _IN_TIME)
        self._share = min(max(share, _LEAST_SHARE), _MOST_SHARE)
        # What is left of a short prompt says little about longer chunks, unless it took too long already.
        if added_s > target_s or 2 * num_tokens > self._tokens:
            ratio = min(added_s / target_s, 2.0)
            self._tokens = max(_SMALLEST_TOKENS, self._tokens * (2.0 if ratio < _FAR_BELOW else exp(_GAIN * (1 - ratio))))


def _scale(num_rows: int) -> int:
    """Row counts of one power of two decode in about the same time."""
    return num_rows.bit_length()
