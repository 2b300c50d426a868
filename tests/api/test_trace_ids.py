"""X-Trace-Id and traceparent from the header to telemetry, timeline and spans, on every route that generates."""

import json
import sqlite3
from pathlib import Path

import pytest
from api_server import running
from otlp_collector import attributes, collecting

ROUTES = {
    "/generate": {"text": "hi"},
    "/v1/completions": {"prompt": "hi", "n": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
}


def test_every_route_writes_the_client_s_trace_down(tmp_path: Path) -> None:
    with running(telemetry_dir=tmp_path) as server:
        for path, body in ROUTES.items():
            headers = {"X-Trace-Id": f"trace:{path}", "X-Request-Id": "one-id-for-all"}
            assert server.client.post(path, json=body, headers=headers).status_code == 200
        assert server.client.post("/generate", json={"text": "hi"}, headers={"X-Trace-Id": "x" * 200}).status_code == 200
    (file,) = tmp_path.glob("*.sqlite3")
    connection = sqlite3.connect(file)
    traces = connection.execute("SELECT trace_id, count(*) FROM requests GROUP BY trace_id").fetchall()
    ids = connection.execute("SELECT count(DISTINCT request_id), count(*) FROM requests WHERE client_id = 'one-id-for-all'").fetchall()
    connection.close()
    assert dict(traces) == {f"trace:{path}": body.get("n", 1) for path, body in ROUTES.items()} | {"": 1}
    assert ids == [(5, 5)]


def test_a_traceparent_leads_from_a_client_s_span_to_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with collecting() as collector:
        with running(telemetry_dir=tmp_path / "sql", timeline_dir=tmp_path / "lines", otlp_endpoint=collector.endpoint) as server:
            for path, body in ROUTES.items():
                assert server.client.post(path, json=body, headers={"traceparent": f"00-{trace}-{span}-01"}).status_code == 200
            assert server.client.post("/generate", json={"text": "hi"}, headers={"traceparent": f"00-{trace}-{span}"}).status_code == 200
        spans = [found for found in collector.take(4 * 6) if found.name not in ("queue", "prefill", "decode")]
        assert collector.empty
    kinds = ["chat", "text_completion", "text_completion", "chat", "chat", "chat"]
    assert [found.name for found in spans] == [f"{kind} test/echo" for kind in kinds]
    assert [(found.trace_id.hex(), found.parent_span_id.hex()) for found in spans[:5]] == [(trace, span)] * 5
    assert spans[5].parent_span_id == b""
    assert all(attributes(found)["gen_ai.usage.output_tokens"] == 3 for found in spans)
    (file,) = (tmp_path / "sql").glob("*.sqlite3")
    connection = sqlite3.connect(file)
    assert connection.execute("SELECT trace_id, count(*) FROM requests GROUP BY trace_id ORDER BY 1").fetchall() == [("", 1), (trace, 5)]
    connection.close()
    (lines,) = (tmp_path / "lines").iterdir()
    events = [json.loads(line) for line in lines.read_text().splitlines()]
    assert sum(event["event"] == "admit" for event in events) == 6
    assert [event["trace"] for event in events if event["event"] == "end"] == [trace] * 5 + [""]
