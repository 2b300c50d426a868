"""`LoadedModel`: everything that loading brings into being, handed to the engine as one value. Needs no library for grammars."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inference_server.backends.base import InferenceBackend
from inference_server.core.model_spec import GenerationDefaults, ModelSpec
from inference_server.engine.step_times import Ranges
from inference_server.parsing.dialect import Dialect
from inference_server.scheduler.interface import SchedulerInterface
from inference_server.tokenization.base import TokenizerLike
from inference_server.tokenization.chat_template import ChatTemplate

if TYPE_CHECKING:
    from inference_server.grammar.compiler import GrammarCompiler


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run.

    max_model_len: the longest prompt plus output in tokens, after the operator's limit.
    dialect: how its chats mark thoughts and tool calls, if they do.
    grammars: what makes its tokens follow a grammar, if anything can. ranges: what marks the phases of steps for a profiler.
    """

    backend: InferenceBackend[Any]
    scheduler: SchedulerInterface
    tokenizer: TokenizerLike
    template: ChatTemplate
    spec: ModelSpec
    defaults: GenerationDefaults
    max_model_len: int
    dialect: Dialect | None = None
    grammars: "GrammarCompiler | None" = None
    ranges: Ranges | None = None
