"""What goes into sampling and comes out of it, whichever way a step's tokens are sampled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from inference_server.core.request import ScheduledRequest


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The rows of a step that sample, as parallel lists. positions: the index each row's token will have in its sequence.

    slots: each row's place in the persistent batch when the step was launched.
    """

    requests: Sequence[ScheduledRequest]
    positions: Sequence[int]
    slots: Sequence[int]


class Sampled(NamedTuple):
    """token_ids: int64 [R], on the device of the logits."""

    token_ids: Tensor


TokenSampling = Callable[[Tensor, SamplingRows], Sampled]
"""float32 logits [R, V], which it may overwrite, and their rows, to one token each."""
