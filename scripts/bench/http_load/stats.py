"""Figures of a run: exact percentiles over every sample in the window, rates, and what the client itself cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from http_load.run import Record, Run

REFUSED = 429


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of samples in seconds, by numpy's linear interpolation; nan without samples."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Latency":
        return cls(*(map(float, np.percentile(samples, (50, 95, 99))) if samples else (float("nan"),) * 3))

    def __str__(self) -> str:
        return " / ".join(f"{1e3 * seconds:,.1f}" for seconds in (self.p50, self.p95, self.p99))


@dataclass(frozen=True, slots=True)
class Summary:
    """Requests are those due in the window, `duration` seconds long; `refused` had status 429, `failed` any other failure.

    ttft: from when a request was due to its first text. itl: between two events with text, which is how long a reader waits; if a server
    merges tokens into one event, that is more than the time between tokens. tpot: from a request's first event to its last, over its number
    of tokens less one. All three are of requests that ended well. output_rate: tokens a second that came within the window, of any request.
    late: from due to sent. event_cpu_us, client_cores: the client's processor time, over events and over the run's wall time.
    """

    duration: float
    requests: int
    refused: int
    failed: int
    ttft: Latency
    itl: Latency
    tpot: Latency
    e2e: Latency
    output_rate: float
    prompt_tokens: int
    cached_tokens: int
    late: Latency
    event_cpu_us: float
    client_cores: float

    @property
    def offered_rate(self) -> float:
        return self.requests / self.duration

    @property
    def served_rate(self) -> float:
        return (self.requests - self.refused - self.failed) / self.duration

    def __str__(self) -> str:
        cached = self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
        return (
            f"{self.requests} requests in {self.duration:.0f} s: {self.served_rate:.2f}/s served, "
            f"{self.refused} refused (429), {self.failed} failed\n"
            f"{self.output_rate:.1f} tokens/s out; {self.prompt_tokens} tokens in, {cached:.0%} of them cached\n"
            f"p50 / p95 / p99 in ms: TTFT {self.ttft} · ITL {self.itl} · TPOT {self.tpot} · end to end {self.e2e}\n"
            f"client: sent {self.late} ms late, {self.event_cpu_us:.0f} µs of processor time an event, {self.client_cores:.1%} of a core"
        )


def summarise(run: Run) -> Summary:
    counted = [record for record in run.records if run.begin <= record.due < run.end]
    good = [record for record in counted if record.error is None and record.events]
    refused = sum(record.status == REFUSED for record in counted)
    events = sum(len(record.events) for record in run.records)
    return Summary(
        duration=run.end - run.begin,
        requests=len(counted),
        refused=refused,
        failed=sum(record.error is not None for record in counted) - refused,
        ttft=Latency.of([record.events[0] - record.due for record in good]),
        itl=Latency.of([later - earlier for record in good for earlier, later in pairwise(record.events)]),
        tpot=Latency.of([(r.events[-1] - r.events[0]) / (r.output_tokens - 1) for r in good if r.output_tokens > 1]),
        e2e=Latency.of([record.end - record.due for record in good]),
        output_rate=sum(_tokens_within(record, run.begin, run.end) for record in run.records) / (run.end - run.begin),
        prompt_tokens=sum(record.prompt_tokens for record in good),
        cached_tokens=sum(record.cached_tokens for record in good),
        late=Latency.of([record.sent - record.due for record in counted]),
        event_cpu_us=1e6 * run.cpu_s / max(events, 1),
        client_cores=run.cpu_s / run.wall_s,
    )


def _tokens_within(record: Record, begin: float, end: float) -> float:
    """How many of a request's tokens came from `begin` to `end`. They are spread evenly over its events; if the server does not count them,
    each event is one.
    """
    if not record.events:
        return 0.0
    share = (record.output_tokens or len(record.events)) / len(record.events)
    return share * sum(begin <= t < end for t in record.events)
