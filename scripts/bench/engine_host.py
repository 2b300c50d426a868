"""Where the host's time of a decode step goes: time by part of the step, each part without those that it calls.

Parts are timed by wrapping their methods, which costs a microsecond a call. Nothing that a step does once for each row is a part.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from inference_server.core.request import ScheduledRequest
from inference_server.engine.engine import Engine

_WAIT = "waiting for the device"


def parts_of(engine: Engine) -> list[tuple[str, Any, str]]:
    """For each part: what to call it, and the object and the name of the method that it times."""
    inside: Any = engine
    pipeline, scheduler = inside._pipeline, inside._scheduler
    backend, processor = pipeline._backend, pipeline._processor
    runner = backend._runner
    parts = [
        ("commands, deadlines, the order of a step", inside, "step"),
        ("schedule", scheduler, "schedule"),
        ("launch: rows, bookkeeping", backend, "launch"),
        ("launch: write and send the inputs", runner._batch, "stage"),
        ("sample: bookkeeping, copy of the ids", backend, "sample"),
        ("sample: choose how to draw", runner._choice, "_draws_as_they_are"),
        ("collect: rows", backend, "collect"),
        (_WAIT, backend._returns, "wait"),
        ("detokenise, look for stops", processor, "process"),
        ("update", scheduler, "update"),
        ("step record, sinks", pipeline, "record"),
        ("snapshot", inside, "_publish"),
        ("choose what to hand over", inside._outbox, "take"),
    ]
    if runner._graphs is not None:
        parts.append(("replay of graphs", runner._graphs, "replay"))
        parts.append(("sample: parameters of the draw", runner._choice._capturable, "prepare"))
    return parts


class HostTimes:
    """Seconds by part, of any clock, from the moment this is made until `remove`."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner_s = 0.0
        self._wrapped: list[tuple[Any, str]] = []
        for part, owner, name in parts_of(engine):
            setattr(owner, name, self._timed(part, getattr(owner, name)))
            self._wrapped.append((owner, name))

    def remove(self) -> None:
        for owner, name in self._wrapped:
            delattr(owner, name)

    def _timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            outer_s, self._inner_s = self._inner_s, 0.0
            start = self._clock()
            try:
                return method(*args, **kwargs)
            finally:
                elapsed = self._clock() - start
                self.seconds[part] += elapsed - self._inner_s
                self._inner_s = outer_s + elapsed

        return timed


def print_host_times(name: str, engine: Engine, requests: list[ScheduledRequest], warm_steps: int, timed_steps: int) -> None:
    """Time `timed_steps` steps and print where their time goes. The `warm_steps` before bring the requests to the state of interest."""
    for request in requests:
        engine.add(request)
    for _ in range(warm_steps):
        engine.step()
    times = HostTimes(engine)
    for _ in range(timed_steps):
        engine.step()
    times.remove()
    while engine.has_work:
        engine.step()
    us = {part: 1e6 * seconds / timed_steps for part, seconds in times.seconds.items()}
    total = sum(us.values())
    print(f"{name}: {total:.0f} µs a step, of which the host works {total - us[_WAIT]:.0f}")
    for part, cost in sorted(us.items(), key=lambda item: -item[1]):
        print(f"  {cost:8.1f} µs  {part}")
