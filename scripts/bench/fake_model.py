"""A loaded model on `FakeBackend`, with the real scheduler and cache, to try servers and to measure them without a model's work."""

from inference_server.backends.fake_backend import FakeBackend
from inference_server.config import Settings
from inference_server.core.model_spec import GenerationDefaults
from inference_server.core.prefix_journal import PrefixJournal
from inference_server.engine.loaded_model import LoadedModel
from inference_server.engine.model_loader import grammar_compiler, kv_layout
from inference_server.kv_cache.factory import create_cache
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler
from inference_server.tokenization.chat_template import ChatTemplate
from inference_server.tokenization.tokenizer import ByteTokenizer

CONTENTS = "{% for m in messages %}{{ m.content }}{% endfor %}"


def load_fake(settings: Settings, backend: FakeBackend, journal: PrefixJournal | None = None, template: str = CONTENTS) -> LoadedModel:
    """Load the fake model. A prompt's tokens are its bytes. template: makes a chat a prompt, by default the contents of its messages in a
    row. journal: where the prefix cache writes what comes and goes.
    """
    spec, options = backend.load(), settings.cache_options(journal)
    layout = kv_layout(options, spec)
    backend.allocate(layout)
    scheduler = ContinuousBatchScheduler(create_cache(layout, options), settings.scheduler_options().on(spec.device))
    tokenizer, chats, defaults = ByteTokenizer(), ChatTemplate(template, {}), GenerationDefaults(temperature=0.0)
    grammars = grammar_compiler(tokenizer, tokenizer.vocab_size)
    return LoadedModel(backend, scheduler, tokenizer, chats, spec, defaults, spec.max_model_len, grammars=grammars)
