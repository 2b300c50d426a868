"""The fleet's own Prometheus exposition: what replicas report of themselves, and what the ingress met with.

A replica's label is its id while it lives, so there are as many series as there are replicas, and those of the dead end with them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

PREFIX = "inference_server_fleet_"
GAUGES = {
    "tokens": "Tokens in flight, those that wait included.",
    "running": "Requests that hold KV blocks.",
    "waiting": "Requests in the queue.",
    "queue_s": "Seconds until the queue of now has been let in.",
    "kv_pressure": "Share of the KV pool that running requests hold.",
    "tokens_per_s": "Output tokens a second, of the last ten seconds.",
}
COUNTERS = {
    "hit_tokens": "Prompt tokens found in the prefix cache.",
    "miss_tokens": "Prompt tokens not found there.",
}
INGRESS = {
    "retries": "Requests that ran again because their replica died before a token had come.",
    "broken": "Requests that ended in an error because their replica died.",
    "refused": "Requests that were refused because no replica could take them.",
}


class FleetMetrics(Collector):
    """One scrape. stats: what `/fleet/stats` answers."""

    def __init__(self, stats: Mapping[str, Any]) -> None:
        self._replicas: Sequence[Mapping[str, Any]] = stats["replicas"]
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(f"{PREFIX}replicas", "Replicas that answer.", value=len(self._replicas))
        for name, documentation in GAUGES.items():
            gauge = GaugeMetricFamily(f"{PREFIX}replica_{name}", documentation, labels=("replica",))
            for replica in self._replicas:
                gauge.add_metric((replica["replica"],), replica[name])
            yield gauge
        for name, documentation in COUNTERS.items():
            counter = CounterMetricFamily(f"{PREFIX}replica_{name}", documentation, labels=("replica",))
            for replica in self._replicas:
                counter.add_metric((replica["replica"],), replica[name])
            yield counter
        for name, documentation in INGRESS.items():
            yield CounterMetricFamily(f"{PREFIX}{name}", documentation, value=self._stats[name])


def render(stats: Mapping[str, Any]) -> tuple[bytes, str]:
    """The exposition in Prometheus's text format, and its content type."""
    registry = CollectorRegistry()
    registry.register(FleetMetrics(stats))
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4
