"""A model on `FakeBackend` as large as the chaos test needs: a small pool, so that requests are preempted, and steps that take a while."""

from inference_server.backends.fake_backend import FakeBackend
from inference_server.config import Settings
from inference_server.core.kv_layout import KVLayout
from inference_server.core.model_spec import GenerationDefaults
from inference_server.engine.loaded_model import LoadedModel
from inference_server.engine.model_loader import grammar_compiler
from inference_server.kv_cache.factory import create_cache
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler
from inference_server.tokenization.chat_template import ChatTemplate
from inference_server.tokenization.tokenizer import ByteTokenizer

MAX_MODEL_LEN = 1024
STEP_S = 0.002


def load_fake(settings: Settings) -> LoadedModel:
    backend = FakeBackend(max_model_len=MAX_MODEL_LEN, supports_overlap=True, step_time_s=STEP_S)
    spec, options = backend.load(), settings.cache_options()
    layout = KVLayout.from_num_blocks(spec.groups, options.block_size, options.num_blocks or 256)
    backend.allocate(layout)
    scheduler = ContinuousBatchScheduler(create_cache(layout, options), settings.scheduler_options())
    tokenizer = ByteTokenizer()
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    defaults = GenerationDefaults(temperature=0.0)
    grammars = grammar_compiler(tokenizer, tokenizer.vocab_size)
    return LoadedModel(backend, scheduler, tokenizer, template, spec, defaults, MAX_MODEL_LEN, 0, grammars=grammars)
