"""`Tally`: what the users of one simulation have met with, as a client sees it. Written and read on the event loop alone."""

from collections import Counter, deque
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

from inference_server.simulator.options import Bucket

_KEPT_TIMES = 1000


@dataclass(slots=True)
class Tally:
    """rejected: answered 429 or 503, and tried again later. failed: any other end without an answer. times in seconds."""

    started: int = 0
    completed: int = 0
    rejected: int = 0
    failed: int = 0
    in_flight: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    last_error: str = ""
    by_bucket: Counter[Bucket] = field(default_factory=Counter)
    ttft_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_TIMES))

    def summary(self) -> dict[str, Any]:
        """Ready for JSON. ttft_ms: percentiles of the latest thousand answers, from the sending of the request; None without any."""
        return {
            "requests_started": self.started,
            "requests_completed": self.completed,
            "requests_rejected": self.rejected,
            "requests_failed": self.failed,
            "in_flight": self.in_flight,
            "tokens_received": self.tokens,
            "cached_prompt_tokens": self.cached_tokens,
            "started_by_bucket": {bucket.value: self.by_bucket[bucket] for bucket in Bucket},
            "ttft_ms": self._ttft_ms(),
            "last_error": self.last_error or None,
        }

    def _ttft_ms(self) -> dict[str, float | None]:
        if len(self.ttft_s) < 2:
            only = round(1000 * self.ttft_s[0], 3) if self.ttft_s else None
            return {"p50": only, "p95": only, "p99": only}
        cuts = quantiles(self.ttft_s, n=100, method="inclusive")
        return {f"p{p}": round(1000 * cuts[p - 1], 3) for p in (50, 95, 99)}
