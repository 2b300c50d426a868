"""`Run`: one start of the server: what names it in files and spans that outlive it, and what turns its clock's seconds into the world's."""

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from inference_server.core.clock import Clock


@dataclass(frozen=True, slots=True)
class Run:
    """clock: the engine's. started_at: seconds since the epoch. epoch: the time of the clock's zero, in seconds since the epoch."""

    model_name: str
    clock: Clock
    started_at: float
    epoch: float

    @classmethod
    def begin(cls, model_name: str, clock: Clock) -> Self:
        """The wall clock is read only once, so that setting it later changes no record."""
        started_at = time.time()
        return cls(model_name, clock, started_at, started_at - clock())

    @property
    def file_stem(self) -> str:
        """Sorts by time, and differs from those of other processes."""
        return f"{datetime.fromtimestamp(self.started_at, UTC):%Y%m%dT%H%M%S%f}-{os.getpid()}"

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.epoch + self.clock()
