"""`PrometheusSink`: the engine's records as Prometheus metrics, with vLLM's names after the prefix `inference_server_`.

Histograms are our own: the client library's cost microseconds and a lock for each sample, and a step of 256 rows brings 256 of them on
the engine thread. Counters of the engine have one writer and are read without a lock; gauges come from the snapshot at scrape time.
The buckets start at 0.5 ms, so that a fast model's token does not fall into the first one.
"""

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
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
HTTP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class LatencyHistogram:
    """Seconds by bucket. `observe` is for one thread only."""

    def __init__(self, name: str, documentation: str) -> None:
        self._name = PREFIX + name
        self._documentation = documentation
        self._counts = [0] * (len(LATENCY_BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float, number: int = 1) -> None:
        self._counts[bisect_left(LATENCY_BUCKETS, seconds)] += number
        self._sum += seconds * number

    def family(self, model_name: str) -> HistogramMetricFamily:
        family = HistogramMetricFamily(self._name, self._documentation, labels=("model_name",))
        bounds = (*map(str, LATENCY_BUCKETS), "+Inf")
        family.add_metric((model_name,), list(zip(bounds, accumulate(self._counts.copy()), strict=True)), self._sum)
        return family


class PrometheusSink(Collector):
    """A `RecordSink` with a registry of its own. Only what `render` returns is ever exposed."""

    def __init__(self, model_name: str, dropped: Mapping[str, Callable[[], int]] | None = None) -> None:
        """dropped: by the name of a sink that writes elsewhere, what tells how many records it has lost."""
        self._model_name = model_name
        self._dropped = dropped or {}
        self._snapshot = EngineSnapshot()
        self._finished: Tally[str] = Tally()
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generation_tokens = 0
        self._steps: Tally[str] = Tally()
        self._rejected: Tally[str] = Tally()
        self._graph_steps = 0
        self._prefill_chunks = 0
        self._last_rows = 0
        self._ttft = LatencyHistogram("time_to_first_token_seconds", "From arrival at the server to the first token.")
        self._itl = LatencyHistogram("inter_token_latency_seconds", "Between two tokens of one request.")
        self._e2e = LatencyHistogram("e2e_request_latency_seconds", "From arrival at the server to the end.")
        self._queue = LatencyHistogram("request_queue_time_seconds", "From arrival at the server to the first admission.")
        self._prefill = LatencyHistogram("request_prefill_time_seconds", "From the first admission to the first token.")
        self._decode = LatencyHistogram("request_decode_time_seconds", "From the first token to the last.")
        self._tpot = LatencyHistogram("request_time_per_output_token_seconds", "Of one request: decode time by tokens after the first.")
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
        self._steps[record.kind.value] += 1
        self._graph_steps += record.replayed
        self._last_rows = record.num_rows
        self._prefill_chunks += record.num_prefill_chunks
        self._generation_tokens += record.num_returned_tokens
        for seconds, number in record.inter_token_s.items():
            self._itl.observe(seconds, number)
        for seconds in record.first_token_s:
            self._ttft.observe(seconds)

    def on_request(self, record: RequestRecord) -> None:
        assert record.finish_reason is not None, "sinks are told of ends"
        self._finished[record.finish_reason.value] += 1
        self._prompt_tokens += record.prompt_tokens
        self._cached_tokens += record.cached_tokens
        self._e2e.observe(record.end_time - record.arrival_time)
        if record.admitted_time is None:
            return
        self._queue.observe(record.admitted_time - record.arrival_time)
        if record.first_token_time is None or record.last_token_time is None:
            return
        decode_s = record.last_token_time - record.first_token_time
        self._prefill.observe(record.first_token_time - record.admitted_time)
        self._decode.observe(decode_s)
        if record.output_tokens > 1:
            self._tpot.observe(decode_s / (record.output_tokens - 1))

    def count_rejection(self, reason: str) -> None:
        """Count a generation that was answered 429 or 503. reason: one of a short list. Called on the event loop."""
        self._rejected[reason] += 1

    @property
    def rejected_total(self) -> int:
        return self._rejected.total()

    def observe_http(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one response. route: its template, never the path a client made up."""
        self._http.labels(method, route, str(status)).observe(seconds)

    def render(self, snapshot: EngineSnapshot, accept: str) -> tuple[bytes, str]:
        """The exposition and its content type, in the format that `accept` (a header's value) prefers."""
        self._snapshot = snapshot
        try:
            encoder, content_type = choose_encoder(accept)
        except TypeError:  # the library compares versions that are no numbers with numbers
            encoder, content_type = choose_encoder("")
        return encoder(self.registry), content_type

    def collect(self) -> Iterator[Metric]:
        scheduler, cache = self._snapshot.scheduler, self._snapshot.cache
        yield self._gauge("num_requests_running", "Requests that hold KV blocks.", scheduler.num_active)
        yield self._gauge("num_requests_prefilling", "Those whose prompt is not computed yet.", scheduler.num_prefilling)
        yield self._gauge("num_requests_waiting", "Requests in the queue.", scheduler.num_waiting)
        yield self._by_reason(scheduler.waiting_by_reason)
        yield self._gauge("num_tokens_waiting", "Prompt tokens in the queue.", scheduler.waiting_tokens)
        yield self._gauge("batch_rows", "Rows of the latest step.", self._last_rows)
        yield self._gauge("kv_cache_usage_perc", "Share of the KV blocks held by running requests, from 0 to 1.", cache.utilization)
        yield self._counter("prompt_tokens", "Prompt tokens of finished requests.", self._prompt_tokens)
        yield self._counter("prompt_tokens_cached", "Those of them taken from the prefix cache or another choice.", self._cached_tokens)
        yield self._counter("prefill_chunks", "Pieces of prompts computed.", self._prefill_chunks)
        yield self._counter("generation_tokens", "Tokens returned.", self._generation_tokens)
        yield self._counter("num_preemptions", "Requests put back into the queue to make room.", scheduler.preemptions_total)
        queries = cache.hit_tokens + cache.miss_tokens
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", queries)
        yield self._counter("prefix_cache_hits", "Prompt tokens found there.", cache.hit_tokens)
        yield self._counter("prefix_cache_evicted_blocks", "Cached blocks given up for others.", cache.evicted_blocks)
        yield self._counters("request_success", "Requests that have ended, by reason.", "finished_reason", self._finished)
        yield self._counters("request_rejections", "Generations answered 429 or 503, by reason.", "reason", self._rejected)
        yield self._counters("engine_steps", "Forward passes, by what they computed.", "kind", self._steps)
        yield self._counter("cuda_graph_steps", "Those of them whose forward was a captured CUDA graph.", self._graph_steps)
        lost = {sink: count() for sink, count in self._dropped.items()}
        yield self._counters("records_dropped", "Records that telemetry, timeline or spans do not have.", "sink", lost)
        for histogram in (self._ttft, self._itl, self._tpot, self._e2e, self._queue, self._prefill, self._decode):
            yield histogram.family(self._model_name)

    def _counters(self, name: str, documentation: str, label: str, counts: Mapping[str, float]) -> CounterMetricFamily:
        """One sample for each value of `label`."""
        family = CounterMetricFamily(PREFIX + name, documentation, labels=("model_name", label))
        for value, count in dict(counts).items():
            family.add_metric((self._model_name, value), count)
        return family

    def _by_reason(self, waiting: Mapping[str, int]) -> GaugeMetricFamily:
        labels = ("model_name", "reason")
        family = GaugeMetricFamily(PREFIX + "num_requests_waiting_by_reason", "Requests in the queue, by what holds them.", labels=labels)
        for reason, count in waiting.items():
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
