"""The plain routes: index, models, tokens, stats, metrics, health, and the headers that every response carries."""

import httpx
import pytest
from api_server import TestServer, running
from echo_model import MAX_MODEL_LEN, MODEL_NAME, TOKENIZER

from inference_server import __version__

ROUTES = {
    *("POST /generate", "POST /v1/completions", "POST /v1/chat/completions", "POST /v1/responses"),
    *("GET /v1/models", "GET /v1/models/{model_id}"),
    *("POST /tokenize", "POST /detokenize", "GET /version", "GET /scheduler/stats", "GET /cache/stats", "GET /metrics"),
    *("GET /requests", "GET /requests/{id}", "POST /simulate/start", "POST /simulate/stop", "GET /simulate/status"),
    *("GET /health", "GET /health/live", "GET /ready", "GET /health/ready"),
}


def test_the_index_names_every_route(client: httpx.Client) -> None:
    body = client.get("/").json()
    assert set(body["routes"]) == ROUTES
    assert all(body["routes"].values())
    assert body["version"] == __version__


def test_models(client: httpx.Client) -> None:
    models = client.get("/v1/models").json()
    assert models["object"] == "list"
    (card,) = models["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == (MODEL_NAME, "model", MAX_MODEL_LEN)
    again = client.get(f"/v1/models/{MODEL_NAME}").json()
    assert card.pop("created") > 0 < again.pop("created")  # each replica has its own time
    assert again == card
    missing = client.get("/v1/models/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_version(client: httpx.Client) -> None:
    assert client.get("/version").json() == {"version": __version__}


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v1/models", "/", "/static/style.css", "/openapi.json"])
def test_head_is_get_without_its_body(client: httpx.Client, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    assert int(head.headers["content-length"]) > 0
    assert client.get(path).status_code == 200, "the connection is still good"


def test_head_finds_no_more_than_get(client: httpx.Client) -> None:
    assert (client.head("/nowhere").status_code, client.head("/generate").status_code) == (404, 405)


def test_tokenize_and_back(client: httpx.Client) -> None:
    body = client.post("/tokenize", json={"prompt": "héllo", "model": MODEL_NAME}).json()
    assert body == {"count": 7, "max_model_len": MAX_MODEL_LEN, "tokens": TOKENIZER.encode("héllo"), "token_strs": None}
    assert client.post("/detokenize", json={"tokens": body["tokens"]}).json() == {"prompt": "héllo"}
    bare = client.post("/tokenize", json={"prompt": "a", "add_special_tokens": False}).json()
    assert bare["tokens"] == [97]
    chat = client.post("/tokenize", json={"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": True}).json()
    assert chat["tokens"] == TOKENIZER.encode("a")


@pytest.mark.parametrize("path", ["/health", "/health/live"])
def test_health(client: httpx.Client, path: str) -> None:
    body = client.get(path).json()
    assert body["status"] in ("ok", "idle")
    assert body["last_step_age_s"] >= 0


@pytest.mark.parametrize("path", ["/ready", "/health/ready"])
def test_ready(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 200


def test_stats_count_what_ran() -> None:
    with running() as server:
        before = server.stats()
        assert before["ttft_ms"]["p50"] is None
        for _ in range(3):
            server.client.post("/generate", json={"text": "hello"})
        after = server.stats()
        assert after["admitted_total"] == before["admitted_total"] + 3
        assert after["ttft_ms"]["p50"] > 0
        assert after["tpot_ms"]["p99"] > 0
        assert after["total_blocks"] == after["free_blocks"] + after["cached_blocks"]
        text = server.client.get("/metrics").text
        assert f'inference_server_request_success_total{{finished_reason="stop",model_name="{MODEL_NAME}"}} 3.0' in text
        assert 'http_request_duration_seconds_count{method="POST",route="/generate",status="200"} 3.0' in text


def test_http_metrics_have_bounded_labels(server: TestServer) -> None:
    server.client.get("/made/up/path")
    server.client.get(f"/v1/models/{MODEL_NAME}")
    server.client.request("PROPFIND", "/made-up")
    text = server.client.get("/metrics").text
    assert "made" not in text
    assert 'method="GET",route="unmatched",status="404"' in text
    assert 'method="GET",route="/v1/models/{model_id:path}",status="200"' in text
    assert 'method="other",route="unmatched"' in text


def test_request_ids_are_echoed_when_well_formed(client: httpx.Client) -> None:
    assert client.get("/health", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert client.get("/nowhere", headers={"X-Request-Id": "abc-2"}).headers["x-request-id"] == "abc-2"
    (fresh,) = client.get("/health").headers.get_list("x-request-id")
    assert fresh


@pytest.mark.parametrize("hostile", ["a b", "x" * 129, "<script>"])
def test_other_request_ids_are_replaced(server: TestServer, hostile: str) -> None:
    """Not tested on a fleet, since there Ray Serve's proxy comes first."""
    fresh = server.client.get("/health", headers={"X-Request-Id": hostile}).headers["x-request-id"]
    assert fresh not in (hostile, "")


def test_cors_is_off_unless_asked_for(server: TestServer) -> None:
    headers = {"Origin": "https://page.example"}
    assert "access-control-allow-origin" not in server.client.get("/health", headers=headers).headers
    with running(cors_origins=("https://page.example",)) as open_server:
        answer = open_server.client.get("/health", headers=headers)
        assert answer.headers["access-control-allow-origin"] == "https://page.example"


def test_unexpected_errors_are_500_without_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as server:
        monkeypatch.setattr(server.context.engine, "health", lambda: 1 / 0)
        answer = server.client.get("/health")
        assert answer.status_code == 500
        assert answer.json()["error"] == {
            "message": "internal server error",
            "type": "internal_server_error",
            "param": None,
            "code": "internal_error",
        }
        assert answer.headers["x-request-id"]
