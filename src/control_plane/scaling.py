"""`ScaleByReports`: how many replicas a fleet needs, from how long requests wait and how full the KV pools are.

A policy of Ray Serve's autoscaler, which keeps to the limits, and waits before it acts on what this says.
"""

from collections.abc import Mapping
from math import ceil
from statistics import fmean
from typing import Any, Protocol

MOST_AT_ONCE = 2.0


class ScalingContext(Protocol):
    """What it reads of Serve's `AutoscalingContext`. aggregated_metrics: by name and replica."""

    @property
    def current_num_replicas(self) -> int: ...

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None: ...

    @property
    def policy_state(self) -> dict[str, Any]: ...


class ScaleByReports:
    """As many replicas as bring the larger of the two ratios of a mean to its aim back to 1; at most twice as many at once."""

    def __init__(self, queue_s: float, kv_pressure: float) -> None:
        """What to aim at: seconds in the queue, share of the KV pool."""
        self._aims = {"queue_s": queue_s, "kv_pressure": kv_pressure}

    def __call__(self, context: ScalingContext) -> tuple[int, dict[str, Any]]:
        metrics = context.aggregated_metrics or {}
        ratios = [fmean(metrics[name].values()) / aim for name, aim in self._aims.items() if metrics.get(name)]
        current = context.current_num_replicas
        wanted = ceil(current * min(MOST_AT_ONCE, max(ratios))) if ratios else current
        return max(1, wanted), context.policy_state
