"""A replica's model for fleets without weights: the fake model with steps that sleep, a small arena, and chats that say who speaks."""

from fake_model import load_fake

from inference_server.backends.fake_backend import FULL_AND_WINDOW, FakeBackend
from inference_server.config import Settings
from inference_server.core.kv_layout import LayerGroup
from inference_server.core.prefix_journal import PrefixJournal
from inference_server.engine.loaded_model import LoadedModel

STEP_S = 0.02
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def load(
    settings: Settings, journal: PrefixJournal, step_s: float = STEP_S, groups: tuple[LayerGroup, ...] = FULL_AND_WINDOW
) -> LoadedModel:
    """step_s: how long a step sleeps."""
    backend = FakeBackend(groups, step_time_s=step_s, max_model_len=16_384, free_bytes=1 << 24)
    return load_fake(settings, backend, journal, TEMPLATE)
