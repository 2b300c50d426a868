"""Clients that leave: all that their requests hold is freed at once."""

import json
import socket
import struct
import threading
import time
from typing import Any

import pytest
from api_server import TestServer, running
from echo_model import EchoBackend

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/generate"
ENDLESS: dict[str, Any] = {"ignore_eos": True, "max_tokens": 1500}


def open_request(server: TestServer, path: str, stream: bool, **fields: Any) -> socket.socket:
    prompt = {CHAT: {"messages": [{"role": "user", "content": "hi"}]}, TEXT: {"prompt": "hi"}, NATIVE: {"text": "hi"}}[path]
    body = json.dumps({**prompt, **ENDLESS, "stream": stream, **fields}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def vanish(connection: socket.socket) -> None:
    """Reset the connection instead of closing it, as a killed process or a pulled cable would."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("path", [CHAT, TEXT, NATIVE])
def test_a_streaming_client_leaves(path: str) -> None:
    with running(EchoBackend(step_s=0.005)) as server:
        connection = open_request(server, path, stream=True)
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        server.wait_for(lambda stats: stats["active_rows"] == 1 and stats["used_blocks"] > 0)
        connection.close()
        server.wait_until_free()


@pytest.mark.parametrize("path", [CHAT, TEXT, NATIVE])
def test_a_client_that_waits_for_the_whole_answer_leaves(path: str) -> None:
    with running(EchoBackend(step_s=0.005)) as server:
        connection = open_request(server, path, stream=False)
        server.wait_for(lambda stats: stats["active_rows"] == 1 and stats["used_blocks"] > 0)
        connection.close()
        server.wait_until_free()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_client_of_many_choices_leaves(path: str, stream: bool) -> None:
    with running(EchoBackend(step_s=0.005), max_batch_size=3, max_batched_tokens=64) as server:
        connection = open_request(server, path, stream, n=8)
        server.wait_for(lambda stats: stats["active_rows"] == 3 and stats["queue_depth"] == 5)
        connection.close()
        server.wait_until_free()
        assert server.context.engine.num_open == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_queued_client_leaves(stream: bool) -> None:
    with running(EchoBackend(step_s=0.005), max_batch_size=1, max_batched_tokens=64) as server:
        first = open_request(server, NATIVE, stream=True)
        server.wait_for(lambda stats: stats["active_rows"] == 1)
        second = open_request(server, NATIVE, stream)
        server.wait_for(lambda stats: stats["queue_depth"] == 1)
        second.close()
        server.wait_for(lambda stats: stats["queue_depth"] == 0 and stats["active_rows"] == 1)
        first.close()
        server.wait_until_free()


def test_fifty_clients_vanish_in_mid_stream() -> None:
    with running(EchoBackend(step_s=0.005), max_batch_size=32) as server:
        connections = [open_request(server, NATIVE, stream=True) for _ in range(50)]
        server.wait_for(lambda stats: stats["active_rows"] == 32 and stats["queue_depth"] == 18, limit_s=10)
        for connection in connections:
            vanish(connection)
        server.wait_until_free(limit_s=2.0)
        assert server.context.engine.num_open == 0
        assert server.client.post("/generate", json={"text": "ok"}).json()["text"] == "ok"


def test_clients_that_leave_at_any_moment() -> None:
    with running(EchoBackend(step_s=0.001)) as server:
        for i in range(60):
            connection = open_request(server, (CHAT, TEXT, NATIVE)[i % 3], stream=i % 2 == 0)
            threading.Event().wait(0.0005 * (i % 12))
            vanish(connection)
        server.wait_until_free()
        assert server.context.engine.num_open == 0


def test_a_client_that_does_not_read_slows_nobody() -> None:
    with running(EchoBackend(step_s=0.001)) as server:
        connection = open_request(server, NATIVE, stream=True)
        start = time.monotonic()
        assert server.client.post("/generate", json={"text": "x" * 100}).json()["tokens_generated"] == 101
        assert time.monotonic() - start < 5
        connection.close()
        server.wait_until_free()
