"""`StepRows`: where the rows of a step lie in its flat batch, for attention that plans on the host and for kernels that look it up.

Lengths that the host has are handed on from the host, so that nothing waits for the device to read them back.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class StepRows:
    """Where the rows of a step begin and how long they are, on the host and on the device; the first num_single have one token."""

    starts: list[int]
    lengths: list[int]
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    num_single: int
