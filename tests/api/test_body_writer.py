"""Events that are written without a turn of their response's task: whole, in order, and no more than a slow client has room for."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import contextmanager
from http.client import HTTPResponse
from math import inf
from typing import Any

import httpx
import pytest
from api_server import TestServer, running
from echo_model import EchoBackend
from wire import CHAT, NATIVE, RESPONSES, TEXT, parse_sse, streamed, whole
from wire_prompts import prompt_of

from inference_server.api.body_writer import BodyWriter
from inference_server.api.http_protocol import HttpProtocol
from inference_server.api.sse import PING, TokenStreamResponse

HIGH_WATER = 4096
NUM_TOKENS = 1500
PING_S = 0.02
ENDLESS = {"prompt": "abc", "ignore_eos": True, "max_tokens": NUM_TOKENS, "stream": True}


@pytest.fixture
def levels(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The size of each chunk that is written at once, and how much of its connection's output then waits for the client."""
    written: list[tuple[int, int]] = []
    write = BodyWriter.write

    def watched(writer: BodyWriter, chunk: bytes) -> None:
        write(writer, chunk)
        written.append((len(chunk), writer._cycle.transport.get_write_buffer_size()))

    monkeypatch.setattr(BodyWriter, "write", watched)
    return written


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let connections hold little on the server's side."""
    connection_made = HttpProtocol.connection_made

    def narrowed(protocol: HttpProtocol, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, HIGH_WATER)
        transport.set_write_buffer_limits(high=HIGH_WATER)
        connection_made(protocol, transport)

    monkeypatch.setattr(HttpProtocol, "connection_made", narrowed)


@contextmanager
def unread(server: TestServer) -> Iterator[socket.socket]:
    """A connection with a small window, on which a long stream has been asked for."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.socket() as connection:
        connection.settimeout(10)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, HIGH_WATER)
        connection.connect((host, int(port)))
        body = json.dumps(ENDLESS).encode()
        head = f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        yield connection


def test_most_events_are_written_at_once(levels: list[tuple[int, int]]) -> None:
    with running(EchoBackend(step_s=0.005)) as server:
        events = parse_sse(server.client.post(TEXT, json={**ENDLESS, "max_tokens": 100}).content)
    assert 50 < len(levels) < len(events) <= 101


@pytest.mark.usefixtures("narrow")
def test_a_client_that_does_not_read_gets_whole_events_merged(levels: list[tuple[int, int]]) -> None:
    with running() as server, unread(server) as connection:
        server.wait_for(lambda stats: stats["active_rows"] == 1)
        server.wait_for(lambda stats: stats["active_rows"] == 0, limit_s=20)
        response = HTTPResponse(connection)
        response.begin()
        events = parse_sse(response.read())
    assert "".join(event["choices"][0]["text"] for event in events) == "abc" * (NUM_TOKENS // 3)
    assert len(levels) < len(events) < NUM_TOKENS / 2
    assert all(waiting <= HIGH_WATER + size + 16 for size, waiting in levels)


@pytest.mark.usefixtures("narrow")
def test_a_client_leaves_while_an_event_waits_for_it(levels: list[tuple[int, int]]) -> None:
    with running(EchoBackend(step_s=0.001)) as server:
        with unread(server):
            server.wait_for(lambda stats: bool(levels) and levels[-1][1] > HIGH_WATER, limit_s=10)
        server.wait_until_free()
        assert server.context.engine.num_open == 0


@pytest.mark.parametrize("path", [CHAT, TEXT, NATIVE, RESPONSES])
def test_a_server_without_the_extension_says_the_same(client: httpx.Client, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BodyWriter, "of", lambda scope: None)
    body = prompt_of(path, "eins zwei 🦊") | {"max_output_tokens" if path == RESPONSES else "max_tokens": 40}
    assert streamed(client, path, body).choices == whole(client, path, body).choices


@pytest.mark.anyio
@pytest.mark.parametrize("busy", [False, True])
async def test_what_is_written_at_once_puts_pings_off(busy: bool) -> None:
    class Writer(BodyWriter):
        last_write = property(lambda self: asyncio.get_running_loop().time() if busy else -inf)  # type: ignore[assignment]

        def __init__(self) -> None: ...

    async def content() -> AsyncIterator[bytes]:
        await asyncio.sleep(5 * PING_S)
        yield b"end"

    async def receive() -> dict[str, str]:
        await asyncio.Event().wait()
        raise AssertionError

    async def on_close() -> None: ...

    sent: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message.get("body", b""))

    await TokenStreamResponse(content(), on_close, PING_S, Writer())({"type": "http"}, receive, send)
    assert (PING in sent) is not busy
