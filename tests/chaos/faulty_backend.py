"""`FaultyBackend`: a backend some of whose steps fail."""

import random
from dataclasses import dataclass
from typing import Any

from inference_server.backends.base import InferenceBackend
from inference_server.core.errors import StepFailedError
from inference_server.core.kv_layout import KVLayout
from inference_server.core.model_spec import ModelSpec
from inference_server.core.plan import StepPlan, StepResult, TokenMasks


@dataclass
class FaultyBackend:
    """Wraps another backend. A share of the calls fails, as a step does that runs out of memory."""

    inner: InferenceBackend[Any]
    share: float
    rng: random.Random

    def load(self) -> ModelSpec:
        return self.inner.load()

    def allocate(self, layout: KVLayout) -> None:
        self.inner.allocate(layout)

    def launch(self, plan: StepPlan) -> Any:
        self._fail("launch")
        return self.inner.launch(plan)

    def sample(self, step: Any, masks: TokenMasks | None = None) -> None:
        self.inner.sample(step, masks)
        self._fail("sample")

    def collect(self, step: Any) -> StepResult:
        result = self.inner.collect(step)
        self._fail("collect")
        return result

    def close(self) -> None:
        self.inner.close()

    def _fail(self, where: str) -> None:
        if self.rng.random() < self.share:
            raise StepFailedError(f"injected in {where}")
