"""Finds the highest rate of arrivals at which a server keeps its promises, by doubling the rate and then bisecting."""

from collections.abc import Callable
from dataclasses import dataclass

from http_load.stats import Summary


@dataclass(frozen=True, slots=True)
class Bars:
    """A server's promises. itl_p99, ttft_p99: in seconds. refused: highest share of requests refused with 429; none may fail otherwise."""

    itl_p99: float = 0.05
    ttft_p99: float = 2.0
    refused: float = 0.0

    def broken_by(self, summary: Summary) -> list[str]:
        """What a run breaks, in words; empty if it keeps all. A run without requests shows nothing, so it breaks them."""
        if summary.requests == 0:
            return ["no request arrived"]
        broken = []
        # Written so that nan, the figure of a run in which no request ended well, breaks the bar.
        if not summary.itl.p99 <= self.itl_p99:
            broken.append(f"p99 ITL {1e3 * summary.itl.p99:.1f} ms")
        if not summary.ttft.p99 <= self.ttft_p99:
            broken.append(f"p99 TTFT {1e3 * summary.ttft.p99:.0f} ms")
        if summary.refused > self.refused * summary.requests:
            broken.append(f"{summary.refused} refused")
        if summary.failed:
            broken.append(f"{summary.failed} failed")
        return broken


def highest_rate(keeps: Callable[[float], bool], start: float, tolerance: float = 0.05, limit: float = 1e4) -> float:
    """The highest rate found that `keeps` the bars. The lowest found that breaks them is higher by less than the share `tolerance`.

    Begins at `start`, doubles or halves until two neighbours differ, then bisects. Returns 0 if even `start` / 64 breaks the bars, and the
    last rate that kept them if `limit` is reached.
    """
    if keeps(start):
        low, high = start, start * 2
        while keeps(high):
            low, high = high, high * 2
            if high > limit:
                return low
    else:
        low, high = start / 2, start
        while not keeps(low):
            low, high = low / 2, low
            if low < start / 64:
                return 0.0
    while high - low > tolerance * low:
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low
