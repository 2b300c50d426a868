"""`MetricsTracker`: latency percentiles and rates over a sliding window, for `/scheduler/stats` and the dashboard.

One ring of one-second slots, each with a few logarithmic histograms. The engine thread writes the current slot and any thread reads;
there is no lock, since a slot is replaced by one assignment and its counters have one writer. Memory does not grow with traffic.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, log
from typing import Any

from inference_server.core.clock import Clock
from inference_server.core.records import RequestRecord, StepRecord

WINDOW_S = 60
PERCENTILES = (50, 95, 99)
SMALLEST_S = 1e-5
GROWTH = 1.05  # a percentile is off by at most 2.5 %
NUM_BUCKETS = 400  # up to SMALLEST_S * GROWTH ** 400, about 50 minutes
_LOG_GROWTH = log(GROWTH)


def _bucket(seconds: float) -> int:
    return min(int(log(seconds / SMALLEST_S) / _LOG_GROWTH), NUM_BUCKETS - 1) if seconds > SMALLEST_S else 0


def _empty() -> list[int]:
    return [0] * NUM_BUCKETS


@dataclass(slots=True)
class _Slot:
    """What happened in one second. The lists count by bucket."""

    second: int
    requests: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    steps: int = 0
    queue: list[int] = field(default_factory=_empty)
    ttft: list[int] = field(default_factory=_empty)
    itl: list[int] = field(default_factory=_empty)
    tpot: list[int] = field(default_factory=_empty)
    e2e: list[int] = field(default_factory=_empty)


class MetricsTracker:
    """A `RecordSink`. Latencies in the summary are milliseconds, None where nothing was measured."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock()
        self._slots: list[_Slot | None] = [None] * WINDOW_S
        self._rejected = 0

    def on_step(self, record: StepRecord) -> None:
        slot = self._slot(record.end_time)
        slot.steps += 1
        slot.tokens += record.num_returned_tokens
        slot.prompt_tokens += record.num_prefill_tokens
        for seconds, number in record.inter_token_s.items():
            slot.itl[_bucket(seconds)] += number
        for seconds in record.first_token_s:
            slot.ttft[_bucket(seconds)] += 1

    def on_request(self, record: RequestRecord) -> None:
        slot = self._slot(record.end_time)
        slot.requests += 1
        if record.admitted_time is not None:
            slot.queue[_bucket(record.admitted_time - record.arrival_time)] += 1
        if record.error_code is not None:
            return
        slot.e2e[_bucket(record.end_time - record.arrival_time)] += 1
        if record.first_token_time is not None and record.output_tokens > 1:
            slot.tpot[_bucket((record.end_time - record.first_token_time) / (record.output_tokens - 1))] += 1

    def count_rejection(self) -> None:
        """One generation answered 429 or 503. Called on the event loop."""
        self._rejected += 1

    @property
    def rejected_total(self) -> int:
        return self._rejected

    def summary(self) -> dict[str, Any]:
        """Percentiles and rates of the last `WINDOW_S` seconds. prompt_tokens_per_s: computed ones, what the cache had left out."""
        now = self._clock()
        recent = [slot for slot in self._slots if slot is not None and slot.second > int(now) - WINDOW_S]
        elapsed_s = min(max(now - self._started, 1.0), float(WINDOW_S))
        return {
            "window_s": WINDOW_S,
            "requests_per_s": sum(slot.requests for slot in recent) / elapsed_s,
            "steps_per_s": sum(slot.steps for slot in recent) / elapsed_s,
            "tokens_per_s": sum(slot.tokens for slot in recent) / elapsed_s,
            "prompt_tokens_per_s": sum(slot.prompt_tokens for slot in recent) / elapsed_s,
            "queue_ms": percentiles_ms(slot.queue for slot in recent),
            "ttft_ms": percentiles_ms(slot.ttft for slot in recent),
            "itl_ms": percentiles_ms(slot.itl for slot in recent),
            "tpot_ms": percentiles_ms(slot.tpot for slot in recent),
            "e2e_ms": percentiles_ms(slot.e2e for slot in recent),
        }

    def history(self) -> dict[str, list[int]]:
        """What each of the last `WINDOW_S` - 1 whole seconds brought, oldest first."""
        now = int(self._clock())
        slots = {slot.second: slot for slot in self._slots if slot is not None}
        past = [slots.get(second) for second in range(now - WINDOW_S + 1, now)]
        return {"tokens": [slot.tokens if slot else 0 for slot in past], "requests": [slot.requests if slot else 0 for slot in past]}

    def _slot(self, time: float) -> _Slot:
        second = int(time)
        slot = self._slots[second % WINDOW_S]
        if slot is None or slot.second != second:
            slot = self._slots[second % WINDOW_S] = _Slot(second)
        return slot


def percentiles_ms(histograms: Iterable[list[int]]) -> dict[str, float | None]:
    """p50, p95 and p99 by nearest rank over the sum of the histograms, each the middle of its bucket."""
    counts = [sum(column) for column in zip(*histograms, strict=True)]
    total = sum(counts)
    return {f"p{p}": _percentile_ms(counts, ceil(total * p / 100)) if total else None for p in PERCENTILES}


def _percentile_ms(counts: list[int], rank: int) -> float:
    seen = 0
    for bucket, count in enumerate(counts):
        seen += count
        if seen >= rank:
            return round(1000 * SMALLEST_S * float(GROWTH ** (bucket + 0.5)), 3)
    raise AssertionError("a rank is at most the number of samples")
