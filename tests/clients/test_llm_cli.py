"""The command `llm`: streamed, whole, and with a schema."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from questions import ANSWER, DESCRIBE, LONG, QUESTION, SHORT

pytest.importorskip("llm")
pytestmark = pytest.mark.clients

MODEL = """\
- model_id: mine
  model_name: embedded
  api_base: {url}
  supports_schema: true
"""


def test_the_command(url: str, tmp_path: Path) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(MODEL.format(url=url))

    def llm(max_tokens: int, *arguments: str) -> str:
        command = [sys.executable, "-m", "llm", "-m", "mine", "-o", "temperature", "0", "-o", "max_tokens", str(max_tokens), *arguments]
        environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout

    streamed, whole = llm(SHORT, QUESTION), llm(SHORT, "--no-stream", QUESTION)
    assert ANSWER in streamed
    assert streamed == whole
    properties = {"city": {"enum": ["Paris", "Rome"]}}
    schema = {"type": "object", "properties": properties, "required": ["city"], "additionalProperties": False}
    assert set(json.loads(llm(LONG, "--schema", json.dumps(schema), DESCRIBE))) == {"city"}
