"""One streamed request to an OpenAI server, and when each part of its answer came: the client of every benchmark over HTTP.

Each request has its own connection, read by an asyncio protocol with the HTTP parser that uvicorn uses. So an event costs the client tens
of microseconds, and hundreds of streams leave the server its cores. Only events that carry text count as arrivals of tokens: such an event
may hold several, and one that only names the role or the usage holds none.
"""

import asyncio
import json
import ssl
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools
import httpx

from http_load.openai_stream import event_text


@dataclass(slots=True)
class Answer:
    """What came back. Times are of `time.perf_counter`, in seconds.

    status: of HTTP; 0 if no response came. error: None if and only if the stream ended as it should. events: when each event with text
    came. The numbers of tokens are the server's own; 0 if it does not say.
    """

    sent: float
    status: int = 0
    error: str | None = None
    end: float = 0.0
    events: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    text: str = ""


class _Exchange(asyncio.Protocol):
    """One request and its response, from connection to close. The parser calls the methods `on_*`."""

    def __init__(self, request: bytes, answer: Answer) -> None:
        self._request = request
        self._answer = answer
        self._parser = httptools.HttpResponseParser(self)
        self._buffer = b""
        self._now = 0.0
        self._finished = False
        self._transport: asyncio.BaseTransport | None = None
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"the connection was lost: {exc}" if exc else "the connection was closed before the end")

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        *lines, self._buffer = (self._buffer + body).split(b"\n")
        if self._answer.status == 200:
            for line in lines:
                if line.startswith(b"data:"):
                    self._on_event(line[5:].strip())
        else:
            self._buffer = b"\n".join((*lines, self._buffer))

    def on_message_complete(self) -> None:
        if self._answer.status != 200:
            self._end(f"HTTP {self._answer.status}: {self._buffer.decode(errors='replace').strip()[:200]}")
        else:
            self._end(None if self._finished else "the stream ended without a finish reason and without [DONE]")

    def _on_event(self, payload: bytes) -> None:
        if payload == b"[DONE]":
            self._finished = True
            return
        event = json.loads(payload)
        if "error" in event:
            self._answer.error = str(event["error"])[:200]
        if usage := event.get("usage"):
            self._answer.prompt_tokens = usage.get("prompt_tokens") or 0
            self._answer.output_tokens = usage.get("completion_tokens") or 0
            self._answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        if any(choice.get("finish_reason") for choice in event.get("choices") or ()):
            self._finished = True  # some servers send no [DONE]
        if text := event_text(event):
            self._answer.text += text
            self._answer.events.append(self._now)

    def _end(self, error: str | None) -> None:
        if self.closed.done():
            return
        self._answer.error = self._answer.error or error
        self._answer.end = self._now or time.perf_counter()
        if self._transport is not None:
            self._transport.close()
        self.closed.set_result(None)


def model_name(url: str, api_key: str = "none") -> str:
    """The first model that the server names. Raises RuntimeError with a one-line message if there is no such server."""
    try:
        response = httpx.get(f"{url}/v1/models", headers={"authorization": f"Bearer {api_key}"}, timeout=30, trust_env=False)
        response.raise_for_status()
    except httpx.HTTPError as error:
        raise RuntimeError(f"{url} names no model: {error}") from error
    return str(response.json()["data"][0]["id"])


class LoadClient:
    """Requests streams from the server at `url`. api_key: sent as a bearer token. timeout_s: longest life of a request."""

    def __init__(self, url: str, api_key: str = "none", timeout_s: float = 600.0) -> None:
        parts = urlsplit(url)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname or "localhost"
        self._port = parts.port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/")
        self._headers = f"host: {parts.netloc}\r\nauthorization: Bearer {api_key}\r\ncontent-type: application/json\r\nconnection: close"
        self._timeout_s = timeout_s

    async def stream(self, path: str, body: dict[str, Any]) -> Answer:
        """Send `body` with `stream` added, and return the whole answer. A failure is part of the answer; nothing is raised."""
        content = json.dumps({**body, "stream": True}).encode()
        head = f"POST {self._path}{path} HTTP/1.1\r\n{self._headers}\r\ncontent-length: {len(content)}\r\n\r\n"
        answer = Answer(time.perf_counter())
        transport: asyncio.BaseTransport | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                connect = asyncio.get_running_loop().create_connection(
                    lambda: _Exchange(head.encode() + content, answer), self._host, self._port, ssl=self._tls
                )
                transport, exchange = await connect
                await exchange.closed
        except (OSError, TimeoutError) as error:
            answer.error, answer.end = str(error) or "timed out", time.perf_counter()
        finally:
            if transport is not None:
                transport.close()
        return answer
