"""What a probe is told of the engine, and where its thread is when it makes no progress."""

import sys
import traceback
from dataclasses import dataclass
from threading import Thread
from typing import Literal

HealthStatus = Literal["loading", "ok", "idle", "stalled", "draining", "dead"]


@dataclass(frozen=True, slots=True)
class Health:
    """last_step_age_s: seconds since the engine last finished a step, or its loading; None while it loads."""

    status: HealthStatus
    last_step_age_s: float | None


def stack_of(thread: Thread | None) -> str:
    """The Python frames of a thread that runs, from any other thread; its native frames are not known here."""
    frame = None if thread is None or thread.ident is None else sys._current_frames().get(thread.ident)
    return "no Python frame" if frame is None else "".join(traceback.format_stack(frame))
