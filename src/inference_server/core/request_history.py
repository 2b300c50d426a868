"""`RequestHistory`: what held a request up, written down as it happens and read when someone asks why it was slow.

It holds what the request's own time fields do not: gates, prefill chunks, preemptions. Decode steps are not in it, so that it stays
short however long the answer is. Times are seconds of the engine's clock.
"""

from dataclasses import dataclass, field
from enum import StrEnum

MAX_EVENTS = 128


class EventKind(StrEnum):
    """HELD: an admission gate began to hold it. PREFILL: a step computed a piece of its known tokens. PREEMPTED: it lost its memory."""

    HELD = "held"
    PREFILL = "prefill"
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """end_time: of a prefill, else equal to the start. gate: of a hold. num_tokens: of a prefill; num_rows: how many shared its step."""

    kind: EventKind
    start_time: float
    end_time: float
    gate: str = ""
    num_tokens: int = 0
    num_rows: int = 0


@dataclass(slots=True)
class RequestHistory:
    """The first `MAX_EVENTS` events in order; num_dropped: how many came after these."""

    events: list[RequestEvent] = field(default_factory=list)
    num_dropped: int = 0

    def hold(self, gate: str, now: float) -> bool:
        """Once for as long as the same gate holds it: called at every scheduling pass. Whether it was written down."""
        last = self.events[-1] if self.events else None
        if last is not None and last.kind is EventKind.HELD and last.gate == gate:
            return False
        return self._add(RequestEvent(EventKind.HELD, now, now, gate))

    def prefill(self, start_time: float, end_time: float, num_tokens: int, num_rows: int) -> None:
        self._add(RequestEvent(EventKind.PREFILL, start_time, end_time, num_tokens=num_tokens, num_rows=num_rows))

    def preempt(self, now: float) -> None:
        self._add(RequestEvent(EventKind.PREEMPTED, now, now))

    def _add(self, event: RequestEvent) -> bool:
        if len(self.events) < MAX_EVENTS:
            self.events.append(event)
            return True
        self.num_dropped += 1
        return False
