"""`MetricsTracker`: latency percentiles and rates over a sliding window, for `/scheduler/stats` and the dashboard.

One ring of one-second slots, each with a few logarithmic histograms of narrow buckets, of which only those in use are kept. The engine
thread writes the current slot and any thread reads; there is no lock, since a slot is replaced by one assignment and its counters have one
writer. Memory does not grow with traffic.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil, log
from typing import Any

from inference_server.core.clock import Clock
from inference_server.core.records import RequestRecord, StepRecord

WINDOW_S = 60
PERCENTILES = (50, 95, 99)
SMALLEST_S = 1e-5
GROWTH = 1.002  # a percentile is off by at most 0.1 %
NUM_BUCKETS = 10_000  # up to SMALLEST_S * GROWTH ** 10_000, about 80 minutes
_LOG_GROWTH = log(GROWTH)

Histogram = Counter[int]  # how often, by bucket


def _bucket(seconds: float) -> int:
    return min(int(log(seconds / SMALLEST_S) / _LOG_GROWTH), NUM_BUCKETS - 1) if seconds > SMALLEST_S else 0


@dataclass(slots=True)
class _Slot:
    """What happened in one second."""

    second: int
    requests: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    steps: int = 0
    queue: Histogram = field(default_factory=Counter)
    ttft: Histogram = field(default_factory=Counter)
    itl: Histogram = field(default_factory=Counter)
    tpot: Histogram = field(default_factory=Counter)
    e2e: Histogram = field(default_factory=Counter)


class MetricsTracker:
    """A `RecordSink`. Latencies in the summary are milliseconds, None where nothing was measured."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock()
        self._slots: list[_Slot | None] = [None] * WINDOW_S

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

    def summary(self) -> dict[str, Any]:
        """Percentiles and rates of the last `WINDOW_S` seconds. prompt_tokens_per_s: of computed tokens, not of those that were cached."""
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
        """The tokens and the requests of each of the last `WINDOW_S` - 1 whole seconds, oldest first."""
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


def percentiles_ms(histograms: Iterable[Histogram]) -> dict[str, float | None]:
    """p50, p95 and p99 by nearest rank over the sum of the histograms, each the middle of its bucket."""
    counts: Histogram = Counter()
    for histogram in histograms:
        counts.update(dict(histogram))  # a copy in one go, for its writer may be at it
    total = sum(counts.values())
    ranks = {f"p{p}": ceil(total * p / 100) for p in PERCENTILES}
    return dict.fromkeys(ranks) if not total else _values_ms(sorted(counts.items()), ranks)


def _values_ms(counts: list[tuple[int, int]], ranks: dict[str, int]) -> dict[str, float | None]:
    """ranks: from 1 to the number of samples."""
    seen = list(accumulate(count for _, count in counts))
    return {name: _middle_ms(counts[bisect_left(seen, rank)][0]) for name, rank in ranks.items()}


def _middle_ms(bucket: int) -> float:
    return round(1000 * SMALLEST_S * float(GROWTH ** (bucket + 0.5)), 4)
