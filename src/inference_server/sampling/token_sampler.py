"""`TokenSampler`: what a backend calls once a step: from the model's logits to one token for each sampling row.

Masks, biases and penalties first, then the draw. The parts are pure functions; here is only their order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from inference_server.core.request import ScheduledRequest
from inference_server.sampling.adjustment import adjust_logits
from inference_server.sampling.sampler import Sampler


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The rows of a step that sample, in parallel lists. positions: the index each token will have in its sequence.

    slots: each row's place in the persistent batch when the step was launched.
    """

    requests: Sequence[ScheduledRequest]
    positions: Sequence[int]
    slots: Sequence[int]


class Sampled(NamedTuple):
    """token_ids: int64 [R], on the device of the logits."""

    token_ids: Tensor


TokenSampling = Callable[[Tensor, SamplingRows], Sampled]
"""float32 logits [R, V], left as they are, and their rows, to one token each."""


class TokenSampler:
    """The way on the host: all tokens of earlier steps must have been collected."""

    def __init__(self) -> None:
        self._sampler = Sampler()

    def __call__(self, logits: Tensor, rows: SamplingRows) -> Sampled:
        """logits: float32 [R, V], left as they are."""
        adjusted = adjust_logits(logits, rows.requests, rows.positions)
        return Sampled(self._sampler(adjusted, [request.sampling for request in rows.requests], rows.positions))
