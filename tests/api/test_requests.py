"""`/requests` over HTTP: open and ended requests, found by the server's id and by the client's id."""

import threading

from api_server import TestServer, running


def test_a_finished_request_tells_its_life(server: TestServer) -> None:
    answer = server.client.post("/generate", json={"text": "tell me", "session_id": "s1"}, headers={"X-Trace-Id": "trace/1"}).json()
    by_trace = server.client.get("/requests/trace/1").json()
    life = server.client.get(f"/requests/{answer['request_id']}").json()
    assert life["request_id"] == answer["request_id"] == by_trace["request_id"]
    assert (life["status"], life["finish_reason"], life["session_id"]) == ("finished", "stop", "s1")
    assert (life["prompt_tokens"], life["output_tokens"]) == (answer["prompt_tokens"], answer["tokens_generated"])
    assert life["ttft_ms"] == answer["ttft_ms"]
    names = [event["event"] for event in life["events"]]
    assert names == ["received", "admitted", "prefill", "first_token", "last_token", "finished"]
    times = [event["at_ms"] for event in life["events"]]
    assert times[0] == 0
    assert times == sorted(times)
    assert life["events"][2]["tokens"] == answer["prompt_tokens"]
    phases = life["phases"]
    assert abs(phases["queue_ms"] + phases["prefill_ms"] - life["ttft_ms"]) < 0.01
    assert phases["decode_ms"] <= life["total_ms"] - life["ttft_ms"] + 0.01
    assert "tell me" not in str(life)


def test_a_request_id_wins_over_a_trace_id(server: TestServer) -> None:
    answer = server.client.post("/generate", json={"text": "a"}, headers={"X-Trace-Id": "t", "X-Request-Id": "mine"})
    assert answer.headers["x-request-id"] == "mine"
    assert server.client.get("/requests/mine").json()["request_id"] == answer.json()["request_id"]


def test_the_latest_come_first_and_no_more_than_asked_for(server: TestServer) -> None:
    ids = [server.client.post("/generate", json={"text": "a"}).json()["request_id"] for _ in range(3)]
    listed = server.client.get("/requests?limit=2").json()
    assert [row["request_id"] for row in listed["ended"]] == ids[:0:-1]
    assert listed["open"] == []
    for limit in ("0", "1001", "x"):
        assert server.client.get(f"/requests?limit={limit}").status_code == 400


def test_an_unknown_id_is_not_found(server: TestServer) -> None:
    answer = server.client.get("/requests/nobody")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_requests_that_run_and_wait_can_be_seen() -> None:
    with running(max_batch_size=1) as server:
        server.backend.step_s = 0.01
        body = {"text": "abc", "ignore_eos": True, "max_tokens": 60}
        call = {"target": server.client.post, "args": ("/generate",), "kwargs": {"json": body}}
        posts = [threading.Thread(**call) for _ in range(2)]
        for post in posts:
            post.start()
        server.wait_for(lambda s: s["active_rows"] == s["queue_depth"] == 1)
        rows = server.client.get("/requests").json()["open"]
        assert [row["status"] for row in rows] == ["running", "waiting"]
        assert rows[0]["finish_reason"] is rows[1]["ttft_ms"] is None
        waiting = server.client.get(f"/requests/{rows[1]['request_id']}").json()
        assert waiting["phases"]["queue_ms"] > 0
        assert waiting["phases"]["prefill_ms"] is waiting["phases"]["decode_ms"] is None
        for post in posts:
            post.join()
        server.wait_until_free()
        assert server.client.get(f"/requests/{rows[1]['request_id']}").json()["queue_ms"] >= waiting["phases"]["queue_ms"]
