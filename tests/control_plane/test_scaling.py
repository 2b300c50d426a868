"""How many replicas there should be, by what they report."""

from types import SimpleNamespace

import pytest

from control_plane.scaling import ScaleByReports


@pytest.mark.parametrize(
    ("current", "queue_s", "kv_pressure", "wanted"),
    [
        (4, 1.0, 0.5, 4),  # as full as it should be
        (4, 0.0, 0.25, 2),  # half as full as it should be
        (4, 1.3, 0.1, 6),  # requests wait, though the pools are empty
        (4, 60.0, 0.9, 8),  # at most twice as many at once
        (3, 0.0, 0.0, 1),
    ],
)
def test_it_follows_what_is_further_from_its_aim(current: int, queue_s: float, kv_pressure: float, wanted: int) -> None:
    metrics = {"queue_s": {"a": 0.0, "b": 2 * queue_s}, "kv_pressure": {"a": kv_pressure, "b": kv_pressure}}
    context = SimpleNamespace(current_num_replicas=current, aggregated_metrics=metrics, policy_state={"kept": 1})
    assert ScaleByReports(queue_s=1.0, kv_pressure=0.5)(context) == (wanted, {"kept": 1})


def test_without_reports_nothing_changes() -> None:
    context = SimpleNamespace(current_num_replicas=3, aggregated_metrics=None, policy_state={})
    assert ScaleByReports(queue_s=1.0, kv_pressure=0.5)(context) == (3, {})
