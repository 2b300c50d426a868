"""What `/metrics` says after real traffic: why generations were refused, times from arrival, and labels that clients cannot multiply."""

import threading
import time

from api_server import TestServer, running
from echo_model import EchoBackend
from prometheus_client.parser import text_string_to_metric_families


def scraped(server: TestServer) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name, then by the values of their labels, without the model's, in the order of the labels' names."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(server.client.get("/metrics").text):
        for sample in family.samples:
            labels = tuple(text for name, text in sorted(sample.labels.items()) if name != "model_name")
            found.setdefault(sample.name.removeprefix("inference_server_"), {})[labels] = sample.value
    return found


def test_labels_do_not_grow_with_sessions_ids_and_paths() -> None:
    with running() as server:
        server.client.post("/generate", json={"text": "a"})
        server.client.get("/nothing")
        server.client.get("/requests/nobody")
        before = sum(len(samples) for samples in scraped(server).values())
        for number in range(1000):
            server.client.get(f"/nothing/{number}")
        for number in range(200):
            server.client.get(f"/requests/{number}", headers={"X-Request-Id": f"id-{number}"})
            server.client.post("/generate", json={"text": "a", "session_id": f"s{number}"}, headers={"X-Trace-Id": f"t{number}"})
            server.client.request(f"VERB{number}", "/generate")
        metrics = scraped(server)
        new = sum(len(samples) for samples in metrics.values()) - before
        assert new <= 80  # the histograms of two more routes' durations: those of /metrics and of the made-up methods
        routes = {route for (_, route, _) in metrics["http_request_duration_seconds_count"]}
        assert routes <= {"/generate", "/requests/{id:path}", "/metrics", "/ready", "unmatched"}


def test_refusals_are_counted_by_reason() -> None:
    with running(EchoBackend(step_s=0.02), max_batch_size=1, max_queue_size=1, admission_deadline_s=0.3) as server:
        body = {"text": "abc", "ignore_eos": True, "max_tokens": 60}
        call = {"target": server.client.post, "args": ("/generate",), "kwargs": {"json": body}}
        posts = [threading.Thread(**call) for _ in range(2)]
        posts[0].start()
        server.wait_for(lambda s: s["active_rows"] == 1)
        posts[1].start()
        server.wait_for(lambda s: s["queue_depth"] == 1)
        assert server.client.post("/generate", json={"text": "a"}).status_code == 429
        for post in posts:
            post.join()
        server.context.engine.begin_drain()
        server.client.post("/generate", json={"text": "a"})
        refused = scraped(server)["request_rejections_total"]
    assert refused == {("queue_full",): 1, ("admission_deadline",): 1, ("draining",): 1}


def test_time_to_first_token_counts_from_arrival_behind_a_full_queue() -> None:
    with running(max_batch_size=1) as server:
        server.backend.gate.clear()
        call = {"target": server.client.post, "args": ("/generate",), "kwargs": {"json": {"text": "abc"}}}
        posts = [threading.Thread(**call) for _ in range(3)]
        for post in posts:
            post.start()
        server.wait_for(lambda _: server.context.engine.num_open == 3)
        time.sleep(0.5)
        server.backend.gate.set()
        for post in posts:
            post.join()
        metrics = scraped(server)
        assert metrics["time_to_first_token_seconds_bucket"]["0.5",] == 0
        assert metrics["time_to_first_token_seconds_count"][()] == 3
        assert metrics["request_queue_time_seconds_sum"][()] > 1.0
        assert server.stats()["ttft_ms"]["p50"] > 490
        assert server.stats()["queue_ms"]["p95"] > 490
