"""`StepTimes`: when the phases of one step were, and the ranges by which a profiler can find them.

A range has the phase and the step's id in its name, so what a profiler shows can be laid beside the timeline. Without a
profiler's ranges a phase costs two looks at the clock.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TypeAlias

from inference_server.core.clock import Clock
from inference_server.core.phases import Phase, PhaseTime

Ranges: TypeAlias = Callable[[str], AbstractContextManager[object]]
"""Opens a range of that name in whatever profiles this process."""


class StepTimes:
    """done: the phases that have ended; one in which something is raised is not in it."""

    def __init__(self, step_id: int, clock: Clock, ranges: Ranges | None) -> None:
        self.done: list[PhaseTime] = []
        self._step_id = step_id
        self._clock = clock
        self._ranges = ranges

    def phase(self, phase: Phase) -> "AbstractContextManager[None]":
        """Times the block that runs under it."""
        return _Running(phase, self.done, self._clock, None if self._ranges is None else self._ranges(f"{phase} step={self._step_id}"))


class _Running:
    """Half as dear as a generator's context manager, and there are five a step."""

    __slots__ = ("_clock", "_done", "_phase", "_range", "_start_time")

    def __init__(self, phase: Phase, done: list[PhaseTime], clock: Clock, range_: AbstractContextManager[object] | None) -> None:
        self._phase = phase
        self._done = done
        self._clock = clock
        self._range = range_

    def __enter__(self) -> None:
        if self._range is not None:
            self._range.__enter__()
        self._start_time = self._clock()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is None:
            self._done.append(PhaseTime(self._phase, self._start_time, self._clock()))
        if self._range is not None:
            self._range.__exit__(kind, error, traceback)
