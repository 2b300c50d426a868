"""`DecisionLog`: what the scheduler did to requests, for whoever asks after a step. It forgets the oldest of what nobody takes."""

from collections import deque

from inference_server.core.decisions import Decision, DecisionKind
from inference_server.core.request import ScheduledRequest

CAPACITY = 4096


class DecisionLog:
    """Written during a scheduling pass; `begin` says which."""

    def __init__(self) -> None:
        self._step_id = 0
        self._now = 0.0
        self._decisions: deque[Decision] = deque(maxlen=CAPACITY)

    def begin(self, step_id: int, now: float) -> None:
        self._step_id, self._now = step_id, now

    def admitted(self, request: ScheduledRequest) -> None:
        self._decisions.append(Decision(DecisionKind.ADMIT, self._step_id, self._now, request.request_id, slot=request.slot))

    def held(self, request: ScheduledRequest, gate: str) -> None:
        """Log a hold once for as long as the same gate holds the request, as its own history does."""
        if request.history.hold(gate, self._now):
            self._decisions.append(Decision(DecisionKind.HOLD, self._step_id, self._now, request.request_id, gate=gate))

    def preempted(self, request: ScheduledRequest) -> None:
        request.history.preempt(self._now)
        self._decisions.append(Decision(DecisionKind.PREEMPT, self._step_id, self._now, request.request_id))

    def take(self) -> tuple[Decision, ...]:
        """The decisions since the last call, in their order."""
        if not self._decisions:
            return ()
        taken = tuple(self._decisions)
        self._decisions.clear()
        return taken
