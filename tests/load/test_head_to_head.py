"""The comparison with vLLM, against a stand-in for vLLM in a Python of its own, and the smoke test of the custom backend."""

import json
import os
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import offline_batch
import pytest
import smoke_custom
import vllm_head_to_head as head_to_head
from tiny_models import QWEN3

from inference_server.tokenization.tokenizer import ByteTokenizer

SERVER = """
    import json, sys
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(json.dumps({"data": [{"id": "m"}]}))

        def do_POST(self):
            number = json.loads(self.rfile.read(int(self.headers["content-length"])))["max_tokens"]
            chunks = ({"choices": [{"text": "a"}]}, {"choices": [], "usage": {"completion_tokens": number}})
            events = (json.dumps(chunk, separators=(",", ":")) for chunk in chunks)
            self.answer("".join(f"data: {event}\\n\\n" for event in events) + "data: [DONE]\\n\\n")

        def answer(self, text):
            self.send_response(200)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args):
            pass

    assert ("--model" in sys.argv) == (sys.argv[-2:] == ["--seed", "0"])
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
STAND_IN = {
    "vllm/__init__.py": """
        import sys, time

        class SamplingParams:
            def __init__(self, *, temperature, max_tokens, ignore_eos, detokenize):
                assert (temperature, ignore_eos, detokenize) == (0.0, True, False)
                self.max_tokens = max_tokens

        class Output:
            def __init__(self, number):
                self.outputs, self.token_ids = [self], [0] * number

        class LLM:
            def __init__(self, *, model, load_format, enable_prefix_caching, **options):
                assert not enable_prefix_caching
                if load_format != "dummy":
                    sys.exit("no weights here")
                print("a line of a log")

            def generate(self, prompts, sampling_params, use_tqdm):
                assert len({tuple(prompt) for prompt in prompts}) == len(prompts)
                time.sleep(0.05)
                return [Output(sampling_params.max_tokens) for _ in prompts]
    """,
    "vllm/inputs.py": "def TokensPrompt(prompt_token_ids):\n    return prompt_token_ids\n",
    "vllm/entrypoints/openai/api_server.py": SERVER,
    "inference_server/__init__.py": "",
    "inference_server/__main__.py": SERVER,
}


@pytest.fixture
def vllm_python(tmp_path: Path) -> str:
    """A Python that has stand-ins for vLLM and for this project's server."""
    for name, text in STAND_IN.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path / "site"}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = {"architectures": ["Qwen3ForCausalLM"], **{key: value for key, value in QWEN3.items() if value is not None}}
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(config))
    return tmp_path / "tiny"


SIZES = ("--load-format", "dummy", "--max-model-len", "64", "--turns", "1", "--rounds", "1")


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, vllm_python: str, *arguments: str) -> list[dict[str, Any]]:
    """Run the comparison with these arguments. Returns the results that it writes."""
    out = folder / "out"
    monkeypatch.setattr(sys, "argv", ["head_to_head", str(folder), "--vllm-python", vllm_python, *SIZES, "--out", str(out), *arguments])
    head_to_head.main()
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    return json.loads(out.with_suffix(".json").read_text())


@pytest.mark.alone
def test_batches_through_both_engines(vllm_python: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    rows = run(monkeypatch, folder, vllm_python, "--levels", "engine", "--batches", "1x4x6", "3x4x6")
    assert [row["label"] for row in rows] == ["1 rows, 4 in, 6 out", "3 rows, 4 in, 6 out"]
    assert all(row["ours"] > 0 for row in rows)
    assert rows[1]["vllm"] == pytest.approx(3 * 6 / 0.05, rel=0.3)


def test_clients_of_both_servers(
    vllm_python: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stand-in's Python also plays this project's server: another test starts the real one."""
    monkeypatch.setattr(sys, "executable", vllm_python)
    rows = run(monkeypatch, folder, vllm_python, "--levels", "http", "--vllm-args=--seed 0", "--batches", "1x4x8", "2x4x8")
    assert [row["label"] for row in rows] == ["1 rows, 4 in, 8 out", "2 rows, 4 in, 8 out"]
    for line, row in zip(capsys.readouterr().out.splitlines()[1:], rows, strict=True):
        assert line.endswith(f"{row['ours'] / row['vllm']:.2f}")


def test_a_level_that_fails_leaves_what_was_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> list[float]:
        raise RuntimeError("no server")

    levels = {"engine": lambda args, job: (lambda: [3.0], lambda: [2.0]), "http": lambda args, job: (lambda: [3.0], fails)}
    monkeypatch.setattr(head_to_head, "LEVELS", levels)
    with pytest.raises(RuntimeError, match="no server"):
        run(monkeypatch, folder, "python", "--batches", "1x4x8")
    assert json.loads((folder / "out.json").read_text()) == [{"level": "engine", "label": "1 rows, 4 in, 8 out", "ours": 3.0, "vllm": 2.0}]


def test_an_engine_that_fails_is_quoted(vllm_python: str, tmp_path: Path) -> None:
    job = {"folder": "f", "load_format": "auto", "max_model_len": 64, "max_batch_size": 1, "max_batched_tokens": 64}
    with pytest.raises(RuntimeError, match="vllm: no weights here"):
        head_to_head.offline(vllm_python, "vllm", job, tmp_path / "log")


def test_an_engine_that_stops_early_does_not_count() -> None:
    job = {"batches": [(2, 3, 4)], "rounds": 1, "vocab_size": 10}
    assert offline_batch.measure(job, lambda prompts, number: len(prompts) * number)[0] > 0
    with pytest.raises(RuntimeError, match="7 tokens instead of 2 x 4"):
        offline_batch.measure(job, lambda prompts, number: 7)


def test_one_prompt_through_the_custom_backend(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--model", str(folder), "--load-format", "dummy", "--device", "cpu", "--num-blocks", "16")
    monkeypatch.setattr(sys, "argv", ["smoke_custom", "--prompt", "hello", "--max-tokens", "5", *flags])
    smoke_custom.main()
    first, prompt, tokens, _, steps = capsys.readouterr().out.splitlines()
    assert first.startswith("Qwen3ForCausalLM")
    assert prompt.startswith(f"{len(ByteTokenizer().encode('hello'))} tokens in")
    assert len(json.loads(tokens.removeprefix("5 tokens out: "))) == 5
    assert steps.startswith("4 more steps")
