"""X-Trace-Id from the header to the telemetry, on every route that generates, beside the server's own id and X-Request-Id."""

import sqlite3
from pathlib import Path

from api_server import running

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
