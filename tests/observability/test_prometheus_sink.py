"""The exposition, read back with the client library's own parser."""

from collections import Counter

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from inference_server.core.plan import StepKind
from inference_server.core.records import CacheStats, EngineSnapshot, RequestRecord, SchedulerStats, StepRecord
from inference_server.core.request import FinishReason, RequestOrigin
from inference_server.observability.prometheus import LATENCY_BUCKETS, PrometheusSink

MODEL = {"model_name": "m"}
SNAPSHOT = EngineSnapshot(
    scheduler=SchedulerStats(num_waiting=3, waiting_by_reason={"kv_blocks": 3}, num_running=2, preemptions_total=7),
    cache=CacheStats(total_blocks=100, used_blocks=25, free_blocks=75, hit_tokens=30, miss_tokens=70),
)


def samples(sink: PrometheusSink) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    body, content_type = sink.render(SNAPSHOT, "")
    assert content_type.startswith("text/plain")
    families = text_string_to_metric_families(body.decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(sink: PrometheusSink, name: str, **labels: str) -> float:
    return samples(sink)[f"inference_server_{name}", frozenset({**MODEL, **labels}.items())]


def finish(sink: PrometheusSink, reason: FinishReason, admitted: bool = True) -> None:
    admitted_time, first_token_time = (100.25, 100.5) if admitted else (None, None)
    sink.on_request(RequestRecord("r", RequestOrigin(), reason, None, 10, 4, 5, 0, 100.0, admitted_time, first_token_time, 102.0))


def test_gauges_and_totals_of_the_snapshot() -> None:
    sink = PrometheusSink("m")
    assert value(sink, "num_requests_running") == 2
    assert value(sink, "num_requests_waiting") == 3
    assert value(sink, "kv_cache_usage_perc") == 0.25
    assert value(sink, "num_preemptions_total") == 7
    assert value(sink, "prefix_cache_queries_total") == 100
    assert value(sink, "prefix_cache_hits_total") == 30


def test_requests() -> None:
    sink = PrometheusSink("m")
    finish(sink, FinishReason.STOP)
    finish(sink, FinishReason.STOP)
    finish(sink, FinishReason.ABORT, admitted=False)
    assert value(sink, "request_success_total", finished_reason="stop") == 2
    assert value(sink, "request_success_total", finished_reason="abort") == 1
    assert value(sink, "prompt_tokens_total") == 30
    assert value(sink, "prompt_tokens_cached_total") == 12
    assert value(sink, "e2e_request_latency_seconds_count") == 3
    assert value(sink, "e2e_request_latency_seconds_sum") == pytest.approx(6.0)
    assert value(sink, "request_queue_time_seconds_sum") == pytest.approx(0.5)


def test_first_tokens_count_with_their_step() -> None:
    sink = PrometheusSink("m")
    sink.on_step(StepRecord(1, StepKind.PREFILL, 0.0, 0.1, 2, 40, 2, 0, {}, (0.45, 0.5)))
    assert value(sink, "time_to_first_token_seconds_count") == 2
    assert value(sink, "time_to_first_token_seconds_bucket", le="0.4") == 0
    assert value(sink, "time_to_first_token_seconds_bucket", le="0.5") == 2


def test_inter_token_latencies_fall_into_fine_buckets() -> None:
    sink = PrometheusSink("m")
    sink.on_step(StepRecord(1, StepKind.DECODE, 0.0, 0.1, 4, 4, 4, 0, {0.0004: 1, 0.0012: 2, 1e6: 1}))
    assert value(sink, "generation_tokens_total") == 4
    counts = {le: value(sink, "inter_token_latency_seconds_bucket", le=le) for le in ("0.0005", "0.001", "0.002", "640.0", "+Inf")}
    assert counts == {"0.0005": 1, "0.001": 1, "0.002": 3, "640.0": 3, "+Inf": 4}
    assert list(LATENCY_BUCKETS) == sorted(set(LATENCY_BUCKETS))


def test_http_durations() -> None:
    sink = PrometheusSink("m")
    sink.observe_http("GET", "/health", 200, 0.002)
    labels = frozenset({"method": "GET", "route": "/health", "status": "200"}.items())
    assert samples(sink)["inference_server_http_request_duration_seconds_count", labels] == 1


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=latest", "text/plain; version=1.x", ";=,", "*/*"])
def test_whoever_asks_for_no_known_format_gets_plain_text(accept: str) -> None:
    assert PrometheusSink("m").render(SNAPSHOT, accept) == PrometheusSink("m").render(SNAPSHOT, "")


def test_openmetrics_on_request() -> None:
    sink = PrometheusSink("m")
    finish(sink, FinishReason.STOP)
    body, content_type = sink.render(SNAPSHOT, "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert any(family.name == "inference_server_time_to_first_token_seconds" for family in parse_openmetrics(body.decode()))


def test_two_sinks_do_not_share_a_registry() -> None:
    first, second = PrometheusSink("a"), PrometheusSink("b")
    finish(first, FinishReason.STOP)
    assert b"request_success_total{" not in second.render(SNAPSHOT, "")[0]


def test_phases_of_a_request() -> None:
    sink = PrometheusSink("m")
    # It arrived at 100 and was admitted at 101; its first token came at 103, the last of five at 107, and its end was recorded at 107.5.
    record = RequestRecord("r", RequestOrigin(), FinishReason.STOP, None, 10, 4, 5, 0, 100.0, 101.0, 103.0, 107.5, last_token_time=107.0)
    sink.on_request(record)
    sums = {name: value(sink, f"request_{name}_seconds_sum") for name in ("queue_time", "prefill_time", "decode_time")}
    assert sums == {"queue_time": 1, "prefill_time": 2, "decode_time": 4}
    assert value(sink, "request_time_per_output_token_seconds_sum") == 1.0
    finish(sink, FinishReason.ABORT, admitted=False)
    assert value(sink, "request_prefill_time_seconds_count") == 1


def test_steps_chunks_and_refusals() -> None:
    sink = PrometheusSink("m")
    sink.on_step(StepRecord(1, StepKind.MIXED, 0.0, 0.1, 5, 40, 2, 0, num_prefill_chunks=3, num_prefill_tokens=38))
    sink.on_step(StepRecord(2, StepKind.DECODE, 0.1, 0.2, 4, 4, 4, 0, replayed=True))
    sink.count_rejection("queue_full")
    assert value(sink, "engine_steps_total", kind="mixed") == value(sink, "engine_steps_total", kind="decode") == 1
    assert value(sink, "cuda_graph_steps_total") == 1
    assert value(sink, "prefill_chunks_total") == 3
    assert value(sink, "batch_rows") == 4
    assert value(sink, "request_rejections_total", reason="queue_full") == 1
    assert value(sink, "num_requests_waiting_by_reason", reason="kv_blocks") == 3


def test_a_histogram_agrees_with_numpy_within_a_bucket() -> None:
    sink = PrometheusSink("m")
    times = np.random.default_rng(2).lognormal(-4, 1, 5000)
    sink.on_step(StepRecord(1, StepKind.DECODE, 0.0, 0.1, 256, 256, 256, 0, Counter(times.tolist())))
    expected = np.searchsorted(np.sort(times), LATENCY_BUCKETS, side="right")
    found = [value(sink, "inter_token_latency_seconds_bucket", le=str(bound)) for bound in LATENCY_BUCKETS]
    assert found == expected.tolist()
    assert value(sink, "inter_token_latency_seconds_sum") == pytest.approx(times.sum())
