"""`SimulationOptions`: what one simulation does. Values only; their limits are checked where they come in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class Bucket(StrEnum):
    """Lengths of prompts: a question, a question about a passage, a question about a document."""

    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"


REALISTIC: Mapping[Bucket, float] = MappingProxyType({Bucket.SHORT: 0.6, Bucket.MEDIUM: 0.3, Bucket.LONG: 0.1})


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """weights: how often each bucket is drawn, relative to their sum, which is not 0. seed: all that users say follows from it.

    think_time_s: mean pause of a user between an answer and the next turn, jittered by half of it either way. max_turns: longest
    conversation. max_tokens: longest answer asked for. duration_s: the simulation ends by itself after so many seconds.
    """

    num_users: int = 8
    weights: Mapping[Bucket, float] = field(default_factory=lambda: REALISTIC)
    seed: int = 0
    think_time_s: float = 1.0
    max_turns: int = 3
    max_tokens: int = 96
    duration_s: float = 300.0
