"""`Outbox`: the deltas that have not been handed over yet, and which of them go with the next hand-over.

Above `MERGE_ABOVE` of them, an event a token would cost more than the tokens. A delta then grows for up to `MERGE_S` seconds. A hand-over
that comes t seconds after the one before takes the oldest t / `MERGE_S` of them, so that the event loop has about the same to do after
every step instead of much after some. The first and the last delta of a request do not wait.
"""

from itertools import islice

from inference_server.core.outputs import OutputDelta

MERGE_ABOVE = 64
MERGE_S = 0.02


class Outbox:
    """One for each engine, written by its thread alone."""

    def __init__(self) -> None:
        self._deltas: dict[str, OutputDelta] = {}  # by request id, the oldest first
        self._urgent: dict[str, None] = {}
        self._taken_at = 0.0
        self._num_due = 0.0

    def delta(self, request_id: str) -> OutputDelta:
        """What the request has to say with its next hand-over; for the caller to add to."""
        delta = self._deltas.get(request_id)
        if delta is None:
            delta = self._deltas[request_id] = OutputDelta()
        return delta

    def hurry(self, request_id: str) -> None:
        """The request's delta goes with the next hand-over."""
        self._urgent[request_id] = None

    def take(self, now: float, flush: bool = False) -> dict[str, OutputDelta]:
        """The deltas of a hand-over. flush: all of them, for there may be none after it for a while."""
        elapsed_s, self._taken_at = now - self._taken_at, now
        if flush or len(self._deltas) <= MERGE_ABOVE or elapsed_s >= MERGE_S:
            taken, self._deltas = self._deltas, {}
        else:
            self._num_due += len(self._deltas) * elapsed_s / MERGE_S
            oldest = list(islice(self._deltas, int(self._num_due)))
            self._num_due -= len(oldest)
            self._urgent.update(dict.fromkeys(oldest))
            taken = {request_id: self._deltas.pop(request_id) for request_id in self._urgent}
        self._urgent.clear()
        return taken
