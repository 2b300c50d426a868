"""`PrometheusSink`: the engine's records as Prometheus metrics, named as vLLM names them behind the prefix `inference_server_`.

Histograms are our own: the client library's cost microseconds and a lock for each sample, and a step of 256 rows brings 256 of them on
the engine thread. Counters of the engine have one writer and are read without a lock; gauges come from the snapshot at scrape time.
The buckets start at 0.5 ms, so that a fast model's token does not fall into the first one.
"""

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from inference_server.core.records import EngineSnapshot, RequestRecord, StepRecord

PREFIX = "inference_server_"
LATENCY_BUCKETS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0),
)
HTTP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class LatencyHistogram:
    """Seconds by bucket. `observe` is for one thread only."""

    def __init__(self, name: str, documentation: str) -> None:
        self._name = PREFIX + name
        self._documentation = documentation
        self._counts = [0] * (len(LATENCY_BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: Iterable[float]) -> None:
        counts = self._counts
        for value in seconds:
            counts[bisect_left(LATENCY_BUCKETS, value)] += 1
            self._sum += value

    def family(self, model_name: str) -> HistogramMetricFamily:
        family = HistogramMetricFamily(self._name, self._documentation, labels=("model_name",))
        bounds = (*map(str, LATENCY_BUCKETS), "+Inf")
        family.add_metric((model_name,), list(zip(bounds, accumulate(self._counts.copy()), strict=True)), self._sum)
        return family


class PrometheusSink(Collector):
    """A `RecordSink` with a registry of its own. Only what `render` returns is ever exposed."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._snapshot = EngineSnapshot()
        self._finished: Tally[str] = Tally()
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generation_tokens = 0
        self._ttft = LatencyHistogram("time_to_first_token_seconds", "From arrival at the server to the first token.")
        self._itl = LatencyHistogram("inter_token_latency_seconds", "Between two tokens of one request.")
        self._e2e = LatencyHistogram("e2e_request_latency_seconds", "From arrival at the server to the end.")
        self._queue = LatencyHistogram("request_queue_time_seconds", "From arrival at the server to the first admission.")
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._http = Histogram(
            PREFIX + "http_request_duration_seconds",
            "From the arrival of a request to the end of its response, streams included.",
            ("method", "route", "status"),
            buckets=HTTP_BUCKETS,
            registry=self.registry,
        )

    def on_step(self, record: StepRecord) -> None:
        self._generation_tokens += record.num_returned_tokens
        self._itl.observe(record.inter_token_s)
        self._ttft.observe(record.first_token_s)

    def on_request(self, record: RequestRecord) -> None:
        self._finished[record.finish_reason.value] += 1
        self._prompt_tokens += record.prompt_tokens
        self._cached_tokens += record.cached_tokens
        self._e2e.observe((record.end_time - record.arrival_time,))
        if record.admitted_time is not None:
            self._queue.observe((record.admitted_time - record.arrival_time,))

    def observe_http(self, method: str, route: str, status: int, seconds: float) -> None:
        """One response. route: its template, never the path a client made up."""
        self._http.labels(method, route, str(status)).observe(seconds)

    def render(self, snapshot: EngineSnapshot, accept: str) -> tuple[bytes, str]:
        """The exposition and its content type, in the format that `accept` (a header's value) prefers."""
        self._snapshot = snapshot
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type

    def collect(self) -> Iterator[Metric]:
        scheduler, cache = self._snapshot.scheduler, self._snapshot.cache
        yield self._gauge("num_requests_running", "Requests that hold KV blocks.", scheduler.num_active)
        yield self._gauge("num_requests_waiting", "Requests in the queue.", scheduler.num_waiting)
        usage = cache.used_blocks / cache.total_blocks if cache.total_blocks else 0.0
        yield self._gauge("kv_cache_usage_perc", "Share of the KV blocks held by running requests, from 0 to 1.", usage)
        yield self._counter("prompt_tokens", "Prompt tokens of finished requests.", self._prompt_tokens)
        yield self._counter("prompt_tokens_cached", "Those of them taken from the prefix cache or another choice.", self._cached_tokens)
        yield self._counter("generation_tokens", "Tokens returned.", self._generation_tokens)
        yield self._counter("num_preemptions", "Requests put back into the queue to make room.", scheduler.preemptions_total)
        queries = cache.hit_tokens + cache.miss_tokens
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", queries)
        yield self._counter("prefix_cache_hits", "Prompt tokens found there.", cache.hit_tokens)
        yield self._finished_requests()
        for histogram in (self._ttft, self._itl, self._e2e, self._queue):
            yield histogram.family(self._model_name)

    def _finished_requests(self) -> CounterMetricFamily:
        labels: Sequence[str] = ("model_name", "finished_reason")
        family = CounterMetricFamily(PREFIX + "request_success", "Requests that have ended, by reason.", labels=labels)
        for reason, count in self._finished.copy().items():
            family.add_metric((self._model_name, reason), count)
        return family

    def _gauge(self, name: str, documentation: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(PREFIX + name, documentation, labels=("model_name",))
        family.add_metric((self._model_name,), value)
        return family

    def _counter(self, name: str, documentation: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(PREFIX + name, documentation, labels=("model_name",))
        family.add_metric((self._model_name,), value)
        return family
