"""`RequestLog`: the latest requests that have ended, each with its history, for `/requests`. Memory is bounded by their number.

The engine thread writes and any thread reads without a lock: a record is one assignment into a ring, and readers copy the ring first.
"""

from inference_server.core.records import RequestRecord, StepRecord

CAPACITY = 1000


class RequestLog:
    """A `RecordSink`."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._ring: list[RequestRecord | None] = [None] * capacity
        self._num_seen = 0

    def on_step(self, record: StepRecord) -> None: ...

    def on_request(self, record: RequestRecord) -> None:
        self._ring[self._num_seen % len(self._ring)] = record
        self._num_seen += 1

    def latest(self, limit: int) -> list[RequestRecord]:
        """Newest first."""
        ring = self._ring.copy()
        return sorted((record for record in ring if record is not None), key=lambda record: record.end_time, reverse=True)[:limit]

    def find(self, key: str) -> RequestRecord | None:
        """By the server's id, else the newest by the client's own, which need not be unique. None: unknown, or ended too long ago."""
        records = self.latest(len(self._ring))
        by_id = next((record for record in records if record.request_id == key), None)
        return by_id or next((record for record in records if key in (record.origin.client_id, record.origin.trace_id)), None)
