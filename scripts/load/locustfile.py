"""Locust users that read streams, with time to first token and time between tokens in Locust's own statistics.

    pip install locust
    locust -f scripts/load/locustfile.py --host http://127.0.0.1:8000                                     # web page on port 8089
    locust -f scripts/load/locustfile.py --host http://127.0.0.1:8000 --headless -u 8 -r 2 -t 60s

Rows `TTFT`, `ITL` and `end to end` of type SSE hold milliseconds; a refusal (429) is a failure of its own name. The prompts are those of
`scripts/bench/load.py`, which measures more finely, since here all users share one core with Locust's bookkeeping.
"""

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from locust import HttpUser, between, task

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from http_load.openai_stream import CHAT, COMPLETIONS, USAGE, event_text
from http_load.workloads import MIXES, Session


class StreamingUser(HttpUser):
    """Plays one session of the mixed workload after the other, with a pause of half a second to two seconds between them."""

    wait_time = between(0.5, 2)

    def on_start(self) -> None:
        self._random = Random()
        self._model = self.client.get("/v1/models").json()["data"][0]["id"]

    @task
    def session(self) -> None:
        session: Session = self._random.choice(MIXES["mixed"]).session(self._random)
        messages: list[dict[str, str]] = []
        for turn in session.turns:
            time.sleep(turn.think_s)  # Locust patches this, so that it pauses only this user
            body = {"model": self._model, "max_tokens": turn.max_tokens, "stream": True, **USAGE}
            if len(session.turns) == 1:
                text = self._stream(COMPLETIONS, {**body, "prompt": turn.text})
            else:
                messages.append({"role": "user", "content": turn.text})
                text = self._stream(CHAT, {**body, "messages": messages})
                messages.append({"role": "assistant", "content": text or ""})
            if text is None:
                return

    def _stream(self, path: str, body: dict[str, Any]) -> str | None:
        """The text of the answer, or None if it failed. Locust's row of the path counts either, with the time until the headers came."""
        begin = time.perf_counter()
        with self.client.post(path, json=body, stream=True, catch_response=True) as response:
            if response.status_code != 200:
                response.failure("refused (429)" if response.status_code == 429 else f"HTTP {response.status_code}: {response.text[:100]}")
                return None
            text, whole = self._read(response.iter_lines(chunk_size=None), begin)
            if not whole:
                response.failure("the stream ended without [DONE]")
                return None
        self._report("end to end", time.perf_counter() - begin, len(text))
        return text

    def _read(self, lines: Iterable[bytes], begin: float) -> tuple[str, bool]:
        """The text, and whether the stream came to its end."""
        text, last = "", begin
        for line in lines:
            if line == b"data: [DONE]":
                return text, True
            if line.startswith(b"data: ") and (more := event_text(json.loads(line[6:]))):
                now = time.perf_counter()
                self._report("ITL" if text else "TTFT", now - last, len(more))
                text, last = text + more, now
        return text, False

    def _report(self, name: str, seconds: float, length: int) -> None:
        self.environment.events.request.fire(
            request_type="SSE", name=name, response_time=1e3 * seconds, response_length=length, exception=None, context={}
        )
