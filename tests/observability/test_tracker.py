"""The sliding window: percentiles within a bucket's width, rates, ageing, and memory that does not grow."""

import random
from dataclasses import dataclass

import pytest

from inference_server.core.plan import StepKind
from inference_server.core.records import RequestRecord, StepRecord
from inference_server.core.request import FinishReason
from inference_server.observability.tracker import NUM_BUCKETS, WINDOW_S, MetricsTracker


@dataclass
class VirtualClock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def step(end_time: float, inter_token_s: tuple[float, ...] = (), first_token_s: tuple[float, ...] = ()) -> StepRecord:
    returned = len(inter_token_s) + len(first_token_s)
    return StepRecord(1, StepKind.DECODE, end_time, end_time, returned, returned, returned, 0, 0, inter_token_s, first_token_s)


def request(end_time: float, total_s: float = 2.0, ttft_s: float | None = 0.5, tokens: int = 4, error: str | None = None) -> RequestRecord:
    arrival = end_time - total_s
    first = None if ttft_s is None else arrival + ttft_s
    return RequestRecord("r", "", "", FinishReason.STOP, error, 10, 0, tokens, 0, arrival, arrival, first, end_time)


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
        assert summary[f"p{percent}"] == pytest.approx(1000 * ordered[len(ordered) * percent // 100], rel=0.03)


def test_a_first_token_counts_at_once_and_the_request_when_it_ends() -> None:
    clock = VirtualClock()
    tracker = MetricsTracker(clock)
    tracker.on_step(step(clock.now, first_token_s=(0.5,)))
    assert tracker.summary()["ttft_ms"]["p50"] == pytest.approx(500, rel=0.03)
    tracker.on_request(request(clock.now))
    summary = tracker.summary()
    assert summary["tpot_ms"]["p50"] == pytest.approx(500, rel=0.03)
    assert summary["e2e_ms"]["p99"] == pytest.approx(2000, rel=0.03)


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
    assert tracker.summary()["itl_ms"]["p50"] == pytest.approx(100, rel=0.03)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-9, 1e9])
def test_absurd_values_fall_into_the_outer_buckets(seconds: float) -> None:
    clock = VirtualClock()
    tracker = MetricsTracker(clock)
    tracker.on_step(step(clock.now, (seconds,)))
    assert tracker.summary()["itl_ms"]["p50"] is not None


def test_memory_is_bounded() -> None:
    clock = VirtualClock()
    tracker = MetricsTracker(clock)
    for _ in range(5 * WINDOW_S):
        tracker.on_step(step(clock.now, (0.01,)))
        clock.now += 1
    slots = [slot for slot in tracker._slots if slot is not None]
    assert len(slots) == WINDOW_S
    assert all(len(slot.itl) == NUM_BUCKETS for slot in slots)


def test_rejections_are_counted() -> None:
    tracker = MetricsTracker(VirtualClock())
    tracker.count_rejection()
    assert tracker.rejected_total == 1
