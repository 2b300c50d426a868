"""`SamplingParams`: how one request's tokens are drawn and when generation ends. Values only; the API validates ranges."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of one generation.

    temperature: 0 means greedy. top_k: 0 means all tokens. seed: always set by admission, so that every draw is a pure
    function of (seed, position, token id). stop: strings that end the text and are not part of it, unless include_stop. max_tokens:
    the most tokens that may be generated, already clamped to the context. stop_token_ids: ids that end the text (the model's own
    EOS ids are added at admission unless the request ignores them); none of them is drawn, and no stop string counts, before min_tokens.
    presence_penalty, frequency_penalty: subtracted once, and once an occurrence, from the logits of output tokens.
    repetition_penalty: divides positive logits and multiplies others, of tokens of the prompt and the output.
    logit_bias: (token id, what is added to its logit). allowed_token_ids: the only ids that may be drawn, None for all.
    logprobs: how many of the most likely tokens to report beside each drawn one, None to report nothing. prompt_logprobs: the same for
    the prompt's tokens; nothing of it is then taken from the prefix cache. return_prompt: the first output brings the prompt's tokens.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    max_tokens: int = 16
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: frozenset[int] | None = None
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_prompt: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """Whether a token's logit depends on the tokens before it."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    def changes_logits(self, num_output_tokens: int) -> bool:
        """Whether anything changes the logits of the token that follows `num_output_tokens` output tokens before it is drawn."""
        return bool(self.penalised or self.logit_bias or self.allowed_token_ids is not None or num_output_tokens < self.min_tokens)
