"""The sinks that options ask for: one that cannot be had is refused with the setting's name, and lost records are counted."""

import sys
import time
from pathlib import Path

import pytest

from inference_server.core.options import SinkOptions
from inference_server.core.records import EngineSnapshot
from inference_server.observability.sinks import SinkError, Sinks


def test_without_the_extra_the_setting_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "inference_server.observability.spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SinkError, match=r"^OTLP_ENDPOINT needs the extra `otel`: pip install '\.\[otel\]' in a checkout$"):
        Sinks.create("m", SinkOptions(otlp_endpoint="http://127.0.0.1:1"), time.monotonic)


def test_sinks_name_the_setting_and_count_what_they_lose(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match=r"^TIMELINE_DIR: .*file"):
        Sinks.create("m", SinkOptions(timeline_dir=tmp_path / "file"), time.monotonic)
    sinks = Sinks.create("m", SinkOptions(tmp_path / "telemetry", tmp_path / "timeline"), time.monotonic)
    assert len(list(sinks)) == 5
    sinks.writing["timeline"].dropped.write_failed = 3
    exposed = sinks.prometheus.render(EngineSnapshot(), "")[0].decode()
    sinks.close()
    assert 'inference_server_records_dropped_total{model_name="m",sink="timeline"} 3.0' in exposed
    assert 'sink="telemetry"} 0.0' in exposed
