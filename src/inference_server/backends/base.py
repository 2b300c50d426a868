"""The seam between the engine and whatever computes: load once, then launch, sample and collect once a step.

Contract: all calls come from the engine thread. `launch(plan)` reads the plan and its requests before it returns and
enqueues the forward; `sample` enqueues the choice of one token for each sampling row and keeps the ids on the device, by
`request.slot`, for the next launch; `collect` waits for the ids. Steps are collected in the order of their
launch. A backend without overlap may do all the work in `launch` and `sample`, one step at a time.
"""

from typing import Protocol, TypeVar

from inference_server.core.kv_layout import KVLayout
from inference_server.core.model_spec import ModelSpec
from inference_server.core.plan import StepPlan, StepResult, TokenMasks

StepT = TypeVar("StepT")


class InferenceBackend(Protocol[StepT]):
    """A model on a device with a paged KV arena."""

    def load(self) -> ModelSpec:
        """Load the weights. Raises ModelLoadError with one clear line."""
        ...

    def allocate(self, layout: KVLayout) -> None:
        """Allocate the KV arena and warm up; once, after `load` and before the first launch."""
        ...

    def launch(self, plan: StepPlan) -> StepT:
        """Apply the plan's block copies, then enqueue the forward: it writes the new tokens' KV and ends before the logits.

        Raises StepFailedError when only this step is lost, EngineDeadError when the device is.
        """
        ...

    def sample(self, step: StepT, masks: TokenMasks | None = None) -> None:
        """Enqueue the sampling of the launched step, among the tokens that `masks` allows.

        Masks depend on the tokens of the step before, so with them this may come after that step's `collect`; always before the
        next launch.
        """
        ...

    def collect(self, step: StepT) -> StepResult:
        """Wait for the sampled ids."""
        ...

    def close(self) -> None:
        """Free the device memory. The backend is unusable afterwards."""
        ...
