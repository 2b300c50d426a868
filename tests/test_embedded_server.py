"""The product as its user meets it: `python -m inference_server` with no settings, the real weights, curl's and OpenAI's clients."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

pytestmark = pytest.mark.heavy
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("home")
    source = Path(__file__).parent.parent / "src"
    environment = {**os.environ, "PYTHONPATH": str(source), "MODEL_CACHE_DIR": str(folder), "KV_CACHE_NUM_BLOCKS": "512", "PORT": "0"}
    with open(folder / "log", "wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "inference_server"], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log
        )
    assert child.stdout is not None
    try:
        address = child.stdout.readline().decode().split()[-1].rstrip("/")
        end = time.monotonic() + 300
        while httpx.get(f"{address}/ready", trust_env=False).status_code != 200:
            assert child.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < end
            time.sleep(0.5)
        yield address
    finally:
        child.terminate()
        child.communicate(timeout=60)


def test_generate_streams_paris(url: str) -> None:
    with httpx.stream("POST", f"{url}/generate", json={"text": QUESTION, "stream": True}, timeout=120, trust_env=False) as answer:
        payloads = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert payloads.pop() == "[DONE]"
    events = [json.loads(payload) for payload in payloads]
    assert "Paris" in "".join(event["text"] for event in events)
    assert events[-1]["finish_reason"] == "stop"


def test_the_openai_client_works(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        whole = client.chat.completions.create(model="embedded", messages=[{"role": "user", "content": QUESTION}])
        stream = client.chat.completions.create(model="embedded", messages=[{"role": "user", "content": QUESTION}], stream=True)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert whole.choices[0].message.content == streamed
    assert "Paris" in streamed
