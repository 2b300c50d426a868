"""A replica's model for fleets without weights: `FakeBackend` behind the real scheduler, cache and byte tokenizer."""

from inference_server.backends.fake_backend import FULL_AND_WINDOW, FakeBackend
from inference_server.config import Settings
from inference_server.core.kv_layout import LayerGroup
from inference_server.core.model_spec import GenerationDefaults
from inference_server.core.prefix_journal import PrefixJournal
from inference_server.engine.loaded_model import LoadedModel
from inference_server.engine.model_loader import kv_layout
from inference_server.kv_cache.factory import create_cache
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler
from inference_server.tokenization.chat_template import ChatTemplate
from inference_server.tokenization.tokenizer import ByteTokenizer

STEP_S = 0.02
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def load(
    settings: Settings, journal: PrefixJournal, step_s: float = STEP_S, groups: tuple[LayerGroup, ...] = FULL_AND_WINDOW
) -> LoadedModel:
    """step_s: how long a step sleeps."""
    backend = FakeBackend(groups, step_time_s=step_s, max_model_len=16_384, free_bytes=1 << 24)
    spec = backend.load()
    options = settings.cache_options(journal)
    layout = kv_layout(options, spec)
    backend.allocate(layout)
    scheduler = ContinuousBatchScheduler(create_cache(layout, options), settings.scheduler_options())
    defaults = GenerationDefaults(temperature=0.0)
    return LoadedModel(backend, scheduler, ByteTokenizer(), ChatTemplate(TEMPLATE, {}), spec, defaults, spec.max_model_len, 0)
