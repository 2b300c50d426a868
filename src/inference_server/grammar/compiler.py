"""`GrammarCompiler`: from what a client asks for to a grammar over this model's tokens, by llguidance.

Masks are computed token by token while an answer is made, so compiling builds no automaton that a small schema could blow up. Each
stage has limits on work and states: a request that exceeds them fails, and no other does.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from inference_server.core.errors import InvalidRequestError, UnsupportedParameterError
from inference_server.core.grammar import AnswerSpec, CallsSpec, CompiledGrammar, GrammarKind
from inference_server.grammar.closing import closing_tokens
from inference_server.grammar.deep_stack import DeepStack
from inference_server.grammar.source import grammar_text
from inference_server.grammar.strict_calls import StrictCalls
from inference_server.grammar.token_grammar import TokenGrammar, check_demands

MAX_SCHEMA_CHARS = 64 * 1024
MAX_RULES_CHARS = 16 * 1024
_MAX_ERROR_CHARS = 400


class GrammarCompiler:
    """For one vocabulary. Construction takes about a second for each 200,000 tokens and holds the interpreter meanwhile. Thread-safe."""

    def __init__(
        self, tokens: Sequence[bytes], special_ids: Collection[int], eos_ids: Sequence[int], encode: Callable[[str], list[int]]
    ) -> None:
        """tokens: the bytes of each id of the model's logits, empty where an id has none. eos_ids: what may end an answer."""
        vocabulary = _Vocabulary(tokens, special_ids, eos_ids, encode)
        self._tokenizer = LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=len(tokens), eos_token=list(eos_ids))
        self._special_tokens = {tokens[index].decode("utf-8", "replace"): index for index in sorted(special_ids) if tokens[index]}
        self._closing, self._eos_id = closing_tokens(tokens), eos_ids[0]
        self._encode = encode
        self._deep_stack = DeepStack()

    def compile(self, spec: AnswerSpec) -> CompiledGrammar:
        """Takes milliseconds, seconds for the largest, and does not hold the interpreter meanwhile. Raises InvalidRequestError."""
        _check_size(spec)
        try:
            text = grammar_text(spec, self._special_tokens)
            build = partial(self._deep_stack.run, partial(self._build, text))
            matcher = build()
        except (ValueError, RuntimeError) as error:  # such as a lone surrogate, or a panic
            raise InvalidRequestError(f"the grammar cannot be read: {error}", param=spec.param) from error
        first_mask = b"" if matcher.is_error() else matcher.compute_bitmask()
        if matcher.is_error() or not any(first_mask):
            raise InvalidRequestError(_message(matcher), param=spec.param)
        check_demands(matcher, spec.param)
        grammar = TokenGrammar(build, matcher, first_mask, self._closing, self._eos_id, spec.param)
        return StrictCalls(grammar, self._opener(spec.opener)) if isinstance(spec, CallsSpec) and spec.opener else grammar

    def _build(self, text: str) -> LLMatcher:
        return LLMatcher(self._tokenizer, text, log_level=0, limits=_limits())

    def _opener(self, text: str) -> int:
        token_ids = self._encode(text)
        if len(token_ids) != 1:
            raise UnsupportedParameterError(
                "strict tools are not supported here: no single token begins a call of this model", param="strict"
            )
        return token_ids[0]


class _Vocabulary:
    """What llguidance asks of a tokenizer, under its names."""

    bos_token_id = None

    def __init__(
        self, tokens: Sequence[bytes], special_ids: Collection[int], eos_ids: Sequence[int], encode: Callable[[str], list[int]]
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = sorted(special_ids)
        self.eos_token_id = eos_ids[0]
        self._encode = encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))


def _limits() -> LLParserLimits:
    """A few milliseconds of work a token, some 20 MB of states a generation."""
    return LLParserLimits(
        initial_lexer_fuel=500_000,
        step_lexer_fuel=50_000,
        step_max_items=20_000,
        max_lexer_states=20_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


def _check_size(spec: AnswerSpec) -> None:
    """Work may grow with the square of the size, fastest for regular expressions and grammars."""
    if isinstance(spec, CallsSpec):
        size, most = sum(len(call.schema) for call in spec.calls), MAX_SCHEMA_CHARS
    else:
        size, most = len(spec.source), MAX_RULES_CHARS if spec.kind in (GrammarKind.REGEX, GrammarKind.EBNF) else MAX_SCHEMA_CHARS
    if size > most:
        raise InvalidRequestError(f"the grammar has more than {most} characters", param=spec.param)


def _message(matcher: LLMatcher) -> str:
    reason = matcher.get_error().replace("<non-verbose/>", "").strip()
    if not reason or reason.startswith("NoExtension"):
        return "the grammar cannot be used: no text fits it"
    return f"the grammar cannot be used: {reason[:_MAX_ERROR_CHARS]}"
