"""The phases of a step, and when each of them was."""

from enum import StrEnum
from typing import NamedTuple


class Phase(StrEnum):
    """In the order of a step: its plan, the start of its forward, the choice of its tokens, the wait for these, and what becomes of them.

    With a step in flight, those of two steps interleave.
    """

    SCHEDULE = "schedule"
    LAUNCH = "launch"
    SAMPLE = "sample"
    COLLECT = "collect"
    OUTPUT = "output"


class PhaseTime(NamedTuple):
    """Seconds of the engine's clock."""

    phase: Phase
    start_time: float
    end_time: float
