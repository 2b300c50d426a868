"""A replica's model for fleets without weights: the fake model with steps that sleep, a small arena, and a chat template with roles."""

import time

from fake_model import load_fake

from inference_server.backends.fake_backend import FULL_AND_WINDOW, FakeBackend, FakeStep
from inference_server.config import Settings
from inference_server.core.kv_layout import LayerGroup
from inference_server.core.plan import StepPlan, StepResult
from inference_server.core.prefix_journal import PrefixJournal
from inference_server.core.request import ScheduledRequest
from inference_server.engine.loaded_model import LoadedModel

STEP_S = 0.02
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


class SleepyBackend(FakeBackend):
    """The fake backend, with steps that each prompt token makes longer. hollow: compute nothing, so that steps only sleep."""

    def __init__(self, groups: tuple[LayerGroup, ...], step_s: float, token_s: float, hollow: bool) -> None:
        super().__init__(groups, step_time_s=step_s, max_model_len=16_384, free_bytes=1 << 24)
        self._token_s = token_s
        self._hollow = hollow
        self._num_prompt_tokens = 0

    def launch(self, plan: StepPlan) -> FakeStep:
        self._num_prompt_tokens = sum(count for count in plan.num_new_tokens if count > 1)
        return super().launch(plan)

    def _write(self, request: ScheduledRequest, position: int) -> None:
        if not self._hollow:
            super()._write(request, position)

    def collect(self, step: FakeStep) -> StepResult:
        time.sleep(self._token_s * self._num_prompt_tokens)
        return super().collect(step)


def load(
    settings: Settings,
    journal: PrefixJournal,
    step_s: float = STEP_S,
    token_s: float = 0.0,
    groups: tuple[LayerGroup, ...] = FULL_AND_WINDOW,
    hollow: bool = False,
) -> LoadedModel:
    """Load a replica. step_s: how long a step sleeps; token_s: how much longer for each prompt token. groups, hollow: see the backends."""
    return load_fake(settings, SleepyBackend(groups, step_s, token_s, hollow), journal, TEMPLATE)
