"""What goes into sampling and comes out of it, whichever way a step's tokens are sampled."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import Tensor

from inference_server.core.plan import StepPlan, TokenMasks
from inference_server.core.request import ScheduledRequest
from inference_server.sampling.logprobs import Scores

if TYPE_CHECKING:
    from inference_server.sampling.device_sampler import DeviceSampler


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The rows of a step that sample, as parallel lists.

    positions: the index that each row's token will have in its sequence.
    slots: each row's slot when the step was launched. Where the rows are those of the step before, it is that step's list itself, from
    which a sampler tells that it knows the rows.
    masks: for each row the tokens that a grammar allows, packed as `Constraint.mask` says, or None; None where no row has one.
    """

    requests: Sequence[ScheduledRequest]
    positions: Sequence[int]
    slots: Sequence[int]
    masks: Sequence[bytes | None] | None = None

    @classmethod
    def of(cls, plan: StepPlan, plan_rows: Sequence[int], before: "SamplingRows | None" = None) -> "SamplingRows":
        """The rows `plan_rows` of the plan, without masks. before: the sampling rows of the step before, where they are known."""
        if plan.num_decodes == len(plan):
            positions = [start + 1 for start in plan.starts]
            if before is not None and plan.repeats(before.requests):
                return cls(plan.requests, positions, before.slots)
            return cls(plan.requests, positions, [request.slot for request in plan.requests])
        requests = [plan.requests[row] for row in plan_rows]
        positions = [plan.starts[row] + plan.num_new_tokens[row] for row in plan_rows]
        return cls(requests, positions, [request.slot for request in requests])

    def masked(self, plan_rows: Sequence[int], masks: TokenMasks | None) -> "SamplingRows":
        """These rows with their masks. masks: by row of the plan. plan_rows: for each of these rows, its row in the plan."""
        return replace(self, masks=[masks.get(row) for row in plan_rows]) if masks else self


class Sampled(NamedTuple):
    """token_ids: int64 [R], on the device of the logits. scores: of the rows that want log-probabilities, in their order."""

    token_ids: Tensor
    scores: Scores | None = None


class TokenSampling(Protocol):
    """From a step's logits to its tokens."""

    @property
    def capturable(self) -> "DeviceSampler | None":
        """The draw of rows whose logits stay as they are, for captured launches; None where there is none, or before the first step."""
        ...

    def __call__(self, logits: Tensor, rows: SamplingRows) -> Sampled:
        """logits: float32 [R, V], which it may overwrite. One token for each of the rows."""
        ...
