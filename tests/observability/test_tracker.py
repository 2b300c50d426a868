"""The sliding window: percentiles within a bucket's width, rates, ageing, and memory that does not grow."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from inference_server.core.plan import StepKind
from inference_server.core.records import RequestRecord, StepRecord
from inference_server.core.request import FinishReason, RequestOrigin
from inference_server.observability.tracker import NUM_BUCKETS, WINDOW_S, MetricsTracker


@dataclass
class VirtualClock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def step(end_time: float, inter_token_s: tuple[float, ...] = (), first_token_s: tuple[float, ...] = ()) -> StepRecord:
    returned = len(inter_token_s) + len(first_token_s)
    return StepRecord(1, StepKind.DECODE, end_time, end_time, returned, returned, returned, 0, Counter(inter_token_s), first_token_s)


def request(end_time: float, total_s: float = 2.0, ttft_s: float | None = 0.5, tokens: int = 4, error: str | None = None) -> RequestRecord:
    arrival = end_time - total_s
    first = None if ttft_s is None else arrival + ttft_s
    return RequestRecord("r", RequestOrigin(), FinishReason.STOP, error, 10, 0, tokens, 0, arrival, arrival, first, end_time)


def test_percentiles_are_within_a_buckets_width() -> None:
    clock = VirtualClock()
    tracker = MetricsTracker(clock)
    samples = [i / 10_000 for i in range(1, 5001)]
    random.Random(1).shuffle(samples)
    for i in range(0, len(samples), 100):
        tracker.on_step(step(clock.now, tuple(samples[i : i + 100])))
    ordered = sorted(samples)
    summary = tracker.summary()["itl_ms"]
    for percent in (50, 95, 99):
        assert summary[f"p{percent}"] == pytest.approx(1000 * ordered[len(ordered) * percent // 100], rel=0.001)


def test_a_first_token_counts_at_once_and_the_request_when_it_ends() -> None:
    clock = VirtualClock()
    tracker = MetricsTracker(clock)
    tracker.on_step(step(clock.now, first_token_s=(0.5,)))
    assert tracker.summary()["ttft_ms"]["p50"] == pytest.approx(500, rel=0.001)
    tracker.on_request(request(clock.now))
    summary = tracker.summary()
    assert summary["tpot_ms"]["p50"] == pytest.approx(500, rel=0.001)
    assert summary["e2e_ms"]["p99"] == pytest.approx(2000, rel=0.001)


def test_failed_requests_and_single_tokens_do_not_bend_the_latencies() -> None:
    clock = VirtualClock()
    tracker = MetricsTracker(clock)
    tracker.on_request(request(clock.now, error="overloaded"))
    assert tracker.summary()["e2e_ms"]["p50"] is None
    tracker.on_request(request(clock.now, tokens=1))
    summary = tracker.summary()
    assert summary["tpot_ms"]["p50"] is None
    assert summary["requests_per_s"] == 2.0


def test_what_is_older_than_the_window_is_forgotten() -> None:
    clock = VirtualClock()
    tracker = MetricsTracker(clock)
    for _ in range(30):
        tracker.on_step(step(clock.now, (0.01,) * 8))
        clock.now += 1
    assert tracker.summary()["tokens_per_s"] == pytest.approx(8.0)
    clock.now += WINDOW_S - 15
    assert tracker.summary()["tokens_per_s"] == pytest.approx(8 * 14 / WINDOW_S)
    clock.now += 15
    assert tracker.summary()["itl_ms"]["p50"] is None
    tracker.on_step(step(clock.now, (0.1,)))
    assert tracker.summary()["itl_ms"]["p50"] == pytest.approx(100, rel=0.001)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-9, 1e9])
def test_absurd_values_fall_into_the_outer_buckets(seconds: float) -> None:
    clock = VirtualClock()
    tracker = MetricsTracker(clock)
    tracker.on_step(step(clock.now, (seconds,)))
    assert tracker.summary()["itl_ms"]["p50"] is not None


def test_memory_is_bounded() -> None:
    clock = VirtualClock()
    tracker = MetricsTracker(clock)
    for number in range(5 * WINDOW_S):
        tracker.on_step(step(clock.now, (0.01, -1.0, 1e9 + number), tuple(map(float, range(5_000)))))
        clock.now += 1
    slots = [slot for slot in tracker._slots if slot is not None]
    assert len(slots) == WINDOW_S
    assert all(len(slot.itl) == 3 and len(slot.ttft) <= NUM_BUCKETS for slot in slots)


@pytest.mark.parametrize("draw", [lambda r: r.expovariate(20), lambda r: r.lognormvariate(-4, 1.2), lambda r: 0.0004 + r.random() / 5000])
def test_percentiles_agree_with_numpy(draw: Callable[[random.Random], float]) -> None:
    clock = VirtualClock()
    tracker = MetricsTracker(clock)
    generator = random.Random(3)
    samples = [draw(generator) for _ in range(3000)]
    for i in range(0, len(samples), 100):
        tracker.on_step(step(clock.now, tuple(samples[i : i + 50]), tuple(samples[i + 50 : i + 100])))
        clock.now += 1
    summary = tracker.summary()
    for name, offset in (("itl_ms", 0), ("ttft_ms", 50)):
        taken = [sample for i, sample in enumerate(samples) if i % 100 // 50 == offset // 50]
        expected = 1000 * np.percentile(taken, (50, 95, 99), method="inverted_cdf")
        assert list(summary[name].values()) == pytest.approx(list(expected), rel=0.001)


def test_queue_time_prompt_tokens_and_steps() -> None:
    clock = VirtualClock()
    tracker = MetricsTracker(clock)
    for waited in (0.1, 0.2, 0.3):
        record = request(clock.now)
        tracker.on_request(replace(record, admitted_time=record.arrival_time + waited))
    tracker.on_request(replace(request(clock.now, error="overloaded"), admitted_time=None))
    tracker.on_step(replace(step(clock.now), num_prefill_chunks=2, num_prefill_tokens=70))
    clock.now += 2
    summary = tracker.summary()
    assert summary["queue_ms"]["p50"] == pytest.approx(200, rel=0.001)
    assert summary["prompt_tokens_per_s"] == 35
    assert summary["steps_per_s"] == 0.5


def test_history_is_second_by_second_and_ends_with_the_last_whole_one() -> None:
    clock = VirtualClock()
    tracker = MetricsTracker(clock)
    for tokens in (1, 0, 3):
        tracker.on_step(step(clock.now, (0.01,) * tokens))
        clock.now += 1
    tracker.on_request(request(clock.now - 1))
    history = tracker.history()
    assert history["tokens"] == [0] * (WINDOW_S - 4) + [1, 0, 3]
    assert history["requests"] == [0] * (WINDOW_S - 2) + [1]
    clock.now += WINDOW_S
    assert set(tracker.history()["tokens"]) == {0}
