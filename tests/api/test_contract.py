"""The server keeps what `/openapi.json` promises: requests made from it never get a 5xx, and it describes every answer."""

from collections import Counter
from typing import Any

import httpx
import jsonschema
import pytest
from echo_model import MODEL_NAME
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openapi_values import nearly, values

PATHS = ("/generate", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize")
PLAIN: dict[str, Any] = {"/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]}, "/v1/responses": {"input": "a"}}
MOST = {"max_tokens": 4, "max_completion_tokens": 4, "max_output_tokens": 4, "n": 2}


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/openapi.json").json()
    return found


def served(key: str, value: Any) -> Any:
    """The value to send for a key: short answers, and the model that is served, since what a model says is not tested here."""
    if key == "model" and isinstance(value, str):
        return MODEL_NAME
    return min(value, MOST[key]) if key in MOST and isinstance(value, int) else value


def check(answer: httpx.Response, operation: dict[str, Any], document: dict[str, Any]) -> None:
    """Assert that the document describes the status, has the content's type for it, and that a JSON body fits its schema."""
    assert answer.status_code < 500, answer.text
    responses = operation["responses"]
    described = responses.get(str(answer.status_code)) or responses[f"{answer.status_code // 100}XX"]
    kind = answer.headers["content-type"].partition(";")[0]
    content = described.get("content") or {kind: {}}
    assert kind in content
    if kind == "application/json":
        schema = {**content[kind].get("schema", {}), "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(answer.json())


@pytest.mark.parametrize("path", PATHS)
def test_answers_are_those_described(client: httpx.Client, document: dict[str, Any], path: str) -> None:
    operation = document["paths"][path]["post"]
    valid = values(operation["requestBody"]["content"]["application/json"]["schema"], document)
    statuses: Counter[int] = Counter()

    @settings(max_examples=50, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(body=st.one_of(valid, valid.map(lambda body: body | PLAIN.get(path, {})), nearly(valid)))
    def run(body: Any) -> None:
        if isinstance(body, dict):
            body = {key: served(key, value) for key, value in body.items()}
        answer = client.post(path, json=body)
        check(answer, operation, document)
        statuses[answer.status_code] += 1

    run()
    assert statuses[200] and statuses[400], statuses


def test_what_is_read_is_as_described(client: httpx.Client, document: dict[str, Any]) -> None:
    paths = [path for path, operations in document["paths"].items() if "get" in operations]
    assert len(paths) > 10
    assert {path for path in document["paths"] if path not in paths} == {*PATHS, "/simulate/start", "/simulate/stop"}
    for path in paths:
        for value in ("x", "test/echo"):
            answer = client.get(path.replace("{model_id}", value).replace("{id}", value))
            check(answer, document["paths"][path]["get"], document)
