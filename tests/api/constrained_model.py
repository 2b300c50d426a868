"""A model for HTTP tests that says what the test tells it to as far as the grammar allows, and else what ends the answer soonest."""

from dataclasses import replace
from functools import cache

from dialect_model import TOKENIZER, ScriptedBackend, load_dialect
from echo_model import EchoBackend

from inference_server.config import Settings
from inference_server.core.plan import StepResult, TokenMasks
from inference_server.engine.loaded_model import LoadedModel
from inference_server.engine.model_loader import grammar_compiler
from inference_server.grammar.compiler import GrammarCompiler

EOS = TOKENIZER.eos_token_ids[0]
CALL = TOKENIZER.encode("<|tool_call>", add_special_tokens=False)
CLOSING = [EOS, *CALL, *b'"}],', *range(33, 127), *range(TOKENIZER.vocab_size)]


class ConstrainedBackend(ScriptedBackend):
    """The scripted model with grammars. With a template other than the two of `dialect_model`, it knows no calls and no thoughts."""

    def sample(self, step: StepResult, masks: TokenMasks | None = None) -> None:
        for row, mask in (masks or {}).items():
            wanted = step.token_ids[row]
            if wanted >= 0:
                step.token_ids[row] = next(token for token in (wanted, *CLOSING) if mask[token // 8] >> token % 8 & 1)


@cache
def compiler() -> GrammarCompiler | None:
    return grammar_compiler(TOKENIZER, TOKENIZER.vocab_size)


def load_constrained(settings: Settings, backend: EchoBackend) -> LoadedModel:
    return replace(load_dialect(settings, backend), grammars=compiler())
