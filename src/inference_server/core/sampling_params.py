"""`SamplingParams`: how one request's tokens are drawn and when generation ends. Values only; the API validates ranges."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of one generation.

    temperature: 0 means greedy. top_k: 0 means all tokens. seed: always set by admission, so that every draw is a pure
    function of (seed, position, token id). stop: strings that end the text and are not part of it. max_tokens: the most tokens
    that may be generated, already clamped to the context. stop_token_ids: ids that end the text (the model's own EOS ids
    are added at admission unless ignore_eos).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    max_tokens: int = 16
    ignore_eos: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0
