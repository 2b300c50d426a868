"""Connections without a whole request: how long they may last, how much they may send, and what answers bytes that are no HTTP."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from api_server import TestServer, running
from echo_model import EchoBackend

from inference_server.api.http_protocol import MAX_HEAD_BYTES, MAX_PIPELINED, HttpProtocol

LIMIT_S = 0.3


@contextmanager
def connected(server: TestServer) -> Iterator[socket.socket]:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """All bytes until the server ends the connection."""
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionResetError:  # the server ended it with bytes of ours unread
        pass
    return data


def check_refusal(answer: bytes, status: int) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"content-type: application/json" in head and b"connection: close" in head
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


@pytest.fixture(scope="module")
def impatient() -> Iterator[TestServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HttpProtocol, "head_timeout_s", LIMIT_S)
        with running(EchoBackend(step_s=0.005)) as server:
            yield server


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET /health HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a client that speaks TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_no_http_is_400_in_the_error_shape(server: TestServer, data: bytes) -> None:
    with connected(server) as connection:
        connection.sendall(data)
        check_refusal(read_all(connection), 400)


@pytest.mark.parametrize("piece", [b"GET /health HTTP/1.1\r\nHost: x\r\n", b"G"])
def test_a_head_that_stops_coming_is_408(impatient: TestServer, piece: bytes) -> None:
    with connected(impatient) as connection:
        connection.sendall(piece)
        check_refusal(read_all(connection), 408)


@pytest.mark.parametrize("pieces", [[], [b"\r\n"] * 40])
def test_a_connection_that_asks_for_nothing_is_closed(impatient: TestServer, pieces: list[bytes]) -> None:
    with connected(impatient) as connection:
        connection.settimeout(LIMIT_S / 10)
        start = time.monotonic()
        for piece in pieces:
            try:
                connection.sendall(piece)
                assert connection.recv(100) == b""
                break
            except TimeoutError:
                continue
        connection.settimeout(10)
        assert read_all(connection) == b""
        assert time.monotonic() - start < 5


def test_a_trickle_of_headers_does_not_put_the_limit_off(impatient: TestServer) -> None:
    with connected(impatient) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        connection.settimeout(LIMIT_S / 10)
        answer = b""
        for index in range(200):
            try:
                connection.sendall(b"X-%d: y\r\n" % index)
                answer = connection.recv(1000)
                break
            except TimeoutError:
                continue
        check_refusal(answer, 408)


def test_a_request_that_runs_longer_than_a_head_may_take_is_left_alone(impatient: TestServer) -> None:
    answer = impatient.client.post("/generate", json={"text": "a", "ignore_eos": True, "max_tokens": 200})
    assert answer.json()["tokens_generated"] == 200


def test_endless_headers_are_431_and_trailers_are_no_headers(server: TestServer) -> None:
    with connected(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
        try:
            for _ in range(4 * MAX_HEAD_BYTES // 4096):
                connection.sendall(b"y" * 4096)
        except OSError:
            pass
        assert read_all(connection)[:13] in (b"HTTP/1.1 431 ", b"")  # a reset takes the answer along
    with connected(server) as connection:
        body = b'{"text": "hi"}'
        head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\nX-Request-Id: smuggled\r\n\r\n" % (len(body), body))
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"smuggled" not in answer


def generate(text: str, **fields: object) -> bytes:
    body = json.dumps({"text": text, **fields}).encode()
    return b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def test_requests_in_a_row_are_answered_in_order_and_missed_together() -> None:
    with running(EchoBackend(step_s=0.005)) as server:
        with connected(server) as connection:
            connection.sendall(generate("first") + generate("second") + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            answer = read_all(connection)
            assert answer.index(b"first") < answer.index(b"second") < answer.index(b"last_step_age_s")
        with connected(server) as connection:
            connection.sendall(generate("a", stream=True, ignore_eos=True, max_tokens=1500) + generate("b"))
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
            server.wait_for(lambda stats: stats["active_rows"] == 1)
        server.wait_until_free()


def test_a_row_of_requests_has_an_end() -> None:
    with running(EchoBackend(step_s=0.005)) as server:
        with connected(server) as connection:
            connection.sendall(generate("a", stream=True, ignore_eos=True, max_tokens=1500))
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * (MAX_PIPELINED + 2))
            assert b"HTTP/1.1 " not in read_all(connection), "nothing is written into the stream that runs"
        server.wait_until_free()
