"""`TokenLogprobs`: how likely a model found a token, and which it found most likely."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the probabilities before masks, penalties and temperature.

    top: the most likely (token id, logprob), best first; as many as were asked for.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
