"""One scrape of a fleet."""

from control_plane.fleet_metrics import COUNTERS, GAUGES, INGRESS, render
from control_plane.replica_report import ReplicaReport


def test_every_figure_is_there_for_every_replica() -> None:
    stats = {"running": 3, "tokens_per_s": 0.5, **ReplicaReport(tokens=7, hit_tokens=9).as_stats()}
    replicas = [{"replica": name, **stats} for name in ("a", "b")]
    text = render({"replicas": replicas, "retries": 3, "broken": 2, "refused": 1})[0].decode()
    assert "inference_server_fleet_replicas 2.0" in text
    assert 'inference_server_fleet_replica_tokens{replica="b"} 7.0' in text
    assert 'inference_server_fleet_replica_running{replica="a"} 3.0' in text
    assert 'inference_server_fleet_replica_hit_tokens_total{replica="a"} 9.0' in text
    assert "inference_server_fleet_retries_total 3.0" in text
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(samples) == 1 + 2 * (len(GAUGES) + len(COUNTERS)) + len(INGRESS)
