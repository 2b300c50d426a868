"""The load generator: arrivals, sessions, figures, the search for the capacity, and agreement with the server's own figures."""

import asyncio
import json
import re
import sys
from bisect import bisect_left
from pathlib import Path
from random import Random

import numpy as np
import pytest
from api_server import TestServer
from http_load.capacity import Bars, highest_rate
from http_load.client import LoadClient
from http_load.openai_stream import USAGE
from http_load.run import Record, Run, Target, arrivals, closed_loop, open_loop
from http_load.stats import summarise
from http_load.workloads import CHAT, MIXES, SHARED_PREFIX, Workload, sessions
from load_server import serving
from prometheus_client.parser import text_string_to_metric_families

import load
from inference_server.observability.prometheus import LATENCY_BUCKETS

SHORT = (Workload("short", (4, 8), (8, 8)),)


def target(server: TestServer) -> Target:
    return Target(LoadClient(server.url), {"model": "test/echo", "ignore_eos": True, **USAGE})


def record(due: float, events: tuple[float, ...] = (), status: int = 200, error: str | None = None, tokens: int = 0) -> Record:
    return Record("w", 0, 0, due, due, events[-1] if events else due, status, error, events, 10, 5, tokens or len(events))


def test_arrivals_are_a_poisson_process() -> None:
    times = list(arrivals(50, 200, "1"))
    gaps = np.diff(times)
    assert times == list(arrivals(50, 200, "1")) != list(arrivals(50, 200, "2"))
    assert times[-1] < 200
    assert np.mean(gaps) == pytest.approx(1 / 50, rel=0.05)
    assert np.std(gaps) == pytest.approx(1 / 50, rel=0.05)


def test_the_same_seed_makes_the_same_sessions() -> None:
    first, again, other = (sessions(MIXES["mixed"], seed) for seed in ("1", "1", "2"))
    some = [next(first) for _ in range(40)]
    assert some == [next(again) for _ in range(40)] != [next(other) for _ in range(40)]
    assert {session.workload for session in some} == {"shared-prefix", "chat", "long-prompt"}
    assert {len(session.turns) for session in some if session.workload == "chat"} == {4}


def test_sessions_of_a_group_share_the_prefix_and_nothing_more() -> None:
    texts = [SHARED_PREFIX.session(Random(seed)).turns[0].text.split() for seed in range(30)]
    starts = {tuple(words[:512]) for words in texts}
    assert len(starts) == SHARED_PREFIX.groups
    assert len({tuple(words[:530]) for words in texts}) == len(texts)


def test_figures_are_exact_and_of_the_window_alone() -> None:
    random = Random(1)
    good = []
    for i in range(101):
        due = 10 + i / 20
        times = due + np.cumsum([random.expovariate(100) for _ in range(5)])
        good.append(record(due, tuple(times), tokens=9))
    outside = [record(5.0, (9.0, 12.0)), record(21.0, (30.0, 90.0))]
    bad = [record(11.0, status=429, error="full"), record(12.0, (12.5,), error="lost"), record(13.0, status=500, error="broken")]
    summary = summarise(Run([*outside, *good, *bad], 10.0, 20.0, cpu_s=0.1, wall_s=20.0))
    assert (summary.requests, summary.refused, summary.failed) == (104, 1, 2)
    assert summary.served_rate == 10.1
    ttft = [r.events[0] - r.due for r in good]
    itl = np.concatenate([np.diff(r.events) for r in good])
    assert [summary.ttft.p50, summary.ttft.p95, summary.ttft.p99] == pytest.approx(np.percentile(ttft, (50, 95, 99)))
    assert [summary.itl.p50, summary.itl.p95, summary.itl.p99] == pytest.approx(np.percentile(itl, (50, 95, 99)))
    assert summary.tpot.p50 == pytest.approx(np.median([(r.events[-1] - r.events[0]) / 8 for r in good]))
    assert summary.output_rate == pytest.approx((101 * 9 + 1 + 1) / 10)
    assert summary.client_cores == 0.005


@pytest.mark.parametrize(("threshold", "start"), [(3.7, 1.0), (3.7, 50.0), (0.6, 0.5), (100.0, 100.0)])
def test_the_highest_rate_is_found_from_either_side(threshold: float, start: float) -> None:
    asked = []

    def keeps(rate: float) -> bool:
        asked.append(rate)
        return rate <= threshold

    found = highest_rate(keeps, start, tolerance=0.02)
    assert found <= threshold < found * 1.02
    assert len(asked) == len(set(asked)) <= 16


def test_the_search_ends() -> None:
    assert highest_rate(lambda rate: False, 1.0) == 0.0
    assert highest_rate(lambda rate: True, 1.0, limit=100.0) == 64.0


def test_bars_are_broken_by_slowness_failure_and_nothing_at_all() -> None:
    fast, slow = record(0.0, (0.1, 0.2)), record(0.0, (3.0, 3.1))
    bars = Bars(itl_p99=0.15, ttft_p99=1.0)

    def broken(*records: Record) -> list[str]:
        return bars.broken_by(summarise(Run(list(records), 0.0, 1.0, 0.0, 1.0)))

    assert broken(fast) == []
    assert broken(slow) == ["p99 TTFT 3000 ms"]
    assert broken() == ["no request arrived"]
    assert broken(*[fast] * 9, record(0.0, status=429, error="full")) == ["1 refused"]
    assert broken(fast, record(0.0, status=500, error="x")) == ["1 failed"]
    assert len(broken(record(0.0, status=500, error="x"))) == 3


def test_an_open_loop_does_not_wait_for_answers() -> None:
    with serving(step_time_s=0.02, max_batch_size=1) as server:
        run = asyncio.run(open_loop(target(server), SHORT, rate=20, warmup_s=0.2, duration_s=0.5))
    due = list(arrivals(20, 0.7, "0"))
    assert [r.due for r in sorted(run.records, key=lambda r: r.due)] == due
    assert {(r.error, r.output_tokens) for r in run.records} == {(None, 8)}
    summary = summarise(run)
    assert summary.requests == sum(t >= 0.2 for t in due)
    assert summary.ttft.p99 > 8 * 0.02 * (summary.requests - 1) / 2, "time in the queue counts"


def test_chats_send_the_answers_back_and_find_them_cached() -> None:
    chat = (Workload("chat", (20, 20), (20, 20), turns=3),)
    with serving() as server:
        run = asyncio.run(closed_loop(target(server), chat, clients=2, warmup_s=0.0, duration_s=0.5))
    assert not [r for r in run.records if r.error]
    by_session = {r.session: [x for x in run.records if x.session == r.session] for r in run.records}
    whole = [turns for turns in by_session.values() if len(turns) == 3]
    assert whole
    for first, second, third in whole:
        assert second.prompt_tokens > first.prompt_tokens + first.output_tokens
        assert third.cached_tokens > second.cached_tokens > 0
        assert first.end <= second.due < second.end <= third.due


def test_refusals_are_counted_apart() -> None:
    with serving(step_time_s=0.02, max_batch_size=1, max_queue_size=1) as server:
        run = asyncio.run(open_loop(target(server), SHORT, rate=40, warmup_s=0.0, duration_s=0.5))
    summary = summarise(run)
    assert summary.refused > 0
    assert summary.failed == 0
    assert {r.status for r in run.records if r.error} == {429}


@pytest.mark.alone
def test_the_server_s_own_histograms_agree() -> None:
    """Medians fall into the same bucket or a neighbour: the client sees everything later, by the time on the way."""
    with serving(step_time_s=0.06) as server:
        run = asyncio.run(closed_loop(target(server), SHORT, clients=4, warmup_s=0.0, duration_s=3.0))
        families = {f.name: f for f in text_string_to_metric_families(server.client.get("/metrics").text)}
    summary = summarise(run)
    tokens = sum(r.output_tokens for r in run.records)
    assert families["inference_server_generation_tokens"].samples[0].value == tokens
    for name, ours in (("time_to_first_token", summary.ttft), ("inter_token_latency", summary.itl)):
        samples = families[f"inference_server_{name}_seconds"].samples
        counts = [s.value for s in samples if s.name.endswith("_bucket")]
        assert counts[-1] == (len(run.records) if name == "time_to_first_token" else tokens - len(run.records))
        theirs = bisect_left(counts, counts[-1] / 2)
        assert abs(bisect_left(LATENCY_BUCKETS, ours.p50) - theirs) <= 1


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stem, lines = tmp_path / "stick", tmp_path / "records.jsonl"

    def run(server: TestServer, *args: str) -> str:
        times = ("--duration", "0.4", "--warmup", "0.1", "--workload", "shared-prefix")
        monkeypatch.setattr(sys, "argv", ["load.py", *args, "--url", server.url, *times])
        load.main()
        return capsys.readouterr().out

    with serving() as server:
        assert "429" in run(server, "closed", "--clients", "2", "--records", str(lines))
        assert "0 failed" in run(server, "open", "--rate", "10")
        assert "stick.png" in run(server, "sweep", "--rates", "5", "20", "--out", str(stem))
        assert "capacity: 0 requests/s" in run(server, "capacity", "--itl-ms", "0.001", "--rate", "20")
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    page = stem.with_suffix(".html").read_text()
    assert page.count("<tr>") == 3
    assert not re.search(r"""(src|href)=["'](?!#)""", page), "the page needs nothing else"
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    assert {row["warmup"] for row in records} == {True, False}
    assert all(len(row["events"]) <= row["output_tokens"] for row in records)
    assert CHAT.name not in {row["workload"] for row in records}
