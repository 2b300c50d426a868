"""`Decision`: what the scheduler did to one request. Who computes what is in the plan, and ends are in `RequestRecord`."""

from enum import StrEnum
from typing import NamedTuple


class DecisionKind(StrEnum):
    """ADMIT: it got a slot. HOLD: a gate began to hold it. PREEMPT: it lost its slot and its memory."""

    ADMIT = "admit"
    HOLD = "hold"
    PREEMPT = "preempt"


class Decision(NamedTuple):
    """step_id: of the step that was planned when it was taken. time: of that pass, in seconds of the engine's clock.

    slot: of an admission, else -1. gate: of a hold.
    """

    kind: DecisionKind
    step_id: int
    time: float
    request_id: str
    slot: int = -1
    gate: str = ""
