"""A grammar compiler over bytes, and whether a text fits a grammar."""

from functools import cache

from inference_server.core.grammar import AnswerSpec, Constraint
from inference_server.engine.model_loader import grammar_compiler
from inference_server.grammar.compiler import GrammarCompiler
from inference_server.tokenization.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
EOS = TOKENIZER.eos_token_ids[0]


@cache
def compiler() -> GrammarCompiler:
    found = grammar_compiler(TOKENIZER, TOKENIZER.vocab_size)
    assert found is not None
    return found


def allows(state: Constraint, token_id: int) -> bool:
    return state.mask is None or bool(state.mask[token_id // 8] >> token_id % 8 & 1)


def fits(spec: AnswerSpec, text: str) -> bool:
    """Whether the masks allow the text, and its end after it."""
    state = compiler().compile(spec).start()
    for token in (*text.encode(), EOS):
        if not allows(state, token):
            return False
        state.advance(token, 1000)
    return True
