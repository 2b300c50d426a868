"""The Grafana dashboard and the alert rules: every expression runs on a real Prometheus that scraped a loaded server and a fleet.

Tests that need Prometheus are marked `monitoring`: Debian's package `prometheus` has it and promtool. Grafana itself is not run.
"""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import yaml
from fleet_exposition import FleetStats, serving_fleet_metrics
from http_load.client import LoadClient
from http_load.openai_stream import USAGE
from http_load.run import Target, closed_loop
from http_load.workloads import SHARED_PREFIX
from load_server import serving
from prometheus_process import Prometheus, eventually, scraping

from control_plane.fleet_metrics import render

MONITORING = Path(__file__).parents[2] / "monitoring"
DASHBOARD = json.loads((MONITORING / "grafana" / "dashboards" / "inference-server.json").read_text())
RULES = [rule for group in yaml.safe_load((MONITORING / "prometheus" / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
ROWS = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"] + [panel for row in ROWS for panel in row["panels"]]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
VARIABLES = {"$__rate_interval": "30s", "$instance": ".+"}
METRIC = re.compile(r"\binference_server_\w+")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped a server before, during and after eight seconds of more load than the server's queue holds."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no prometheus on the path; Debian has it as the package prometheus")
    with (
        serving(max_batch_size=4, max_queue_size=2, metrics_key="for-prometheus") as server,
        serving_fleet_metrics() as fleet,
        scraping(binary, MONITORING / "prometheus", server.url, fleet, "for-prometheus", tmp_path_factory.mktemp("prometheus")) as found,
    ):
        eventually(lambda: found.values("inference_server_generation_tokens_total == 0"))
        target = Target(LoadClient(server.url), {"model": "test/echo", "ignore_eos": True, **USAGE})
        run = asyncio.run(closed_loop(target, (SHARED_PREFIX,), clients=8, warmup_s=0, duration_s=8))
        tokens = sum(record.output_tokens for record in run.records)
        eventually(lambda: found.values(f"inference_server_generation_tokens_total == {tokens}"))
        yield found


@pytest.mark.monitoring
@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[f"{title} {i}" for i, (title, _) in enumerate(QUERIES)])
def test_every_panel_has_data(prometheus: Prometheus, title: str, query: str) -> None:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    values = prometheus.values(query)
    assert values
    assert all(map(isfinite, values)), values
    if "rate(" in query and title != "Preemptions":
        assert max(values) > 0, "the load shows"


@pytest.mark.monitoring
def test_every_alert_is_evaluated(prometheus: Prometheus) -> None:
    def evaluated() -> list[dict[str, Any]]:
        rules = [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]
        return [] if any(rule["health"] == "unknown" for rule in rules) else rules

    rules = eventually(evaluated)
    assert {rule["name"]: (rule["health"], rule.get("lastError")) for rule in rules} == {rule["alert"]: ("ok", None) for rule in RULES}


@pytest.mark.monitoring
@pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_alerts_fire_when_they_should(arguments: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on the path; Debian has it in the package prometheus")
    done = subprocess.run([promtool, *arguments], cwd=MONITORING / "prometheus", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_that_is_asked_for_exists() -> None:
    with serving() as server:
        exposed = server.client.get("/metrics").text + render(FleetStats().next())[0].decode()
    for expression in [query for _, query in QUERIES] + [rule["expr"] for rule in RULES]:
        for name in METRIC.findall(expression):
            assert re.search(rf"^# TYPE {re.sub('_(bucket|count|sum)$', '', name)} ", exposed, re.MULTILINE), name


def test_the_dashboard_is_one_that_grafana_can_show() -> None:
    sources = yaml.safe_load((MONITORING / "grafana" / "provisioning" / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert {panel["datasource"]["uid"] for panel in PANELS} == {source["uid"] for source in sources}
    assert len({panel["id"] for panel in PANELS + ROWS}) == len(PANELS + ROWS)
    assert all(panel["description"] and panel["targets"] for panel in PANELS)
    for one, other in combinations([panel["gridPos"] for panel in PANELS + ROWS], 2):
        apart = [one[at] + one[size] <= other[at] or other[at] + other[size] <= one[at] for at, size in (("x", "w"), ("y", "h"))]
        assert any(apart), (one, other)


def test_every_alert_is_tested() -> None:
    cases = yaml.safe_load((MONITORING / "prometheus" / "alerts_test.yml").read_text())["tests"]
    fires = {check["alertname"] for case in cases for check in case["alert_rule_test"] if check.get("exp_alerts")}
    assert fires == {rule["alert"] for rule in RULES}
