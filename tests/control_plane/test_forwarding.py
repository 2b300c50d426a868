"""Dying replicas as the client sees them: nothing before its first token, one error after it. Without Ray: a call is a generator."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence

import pytest

from control_plane.asgi_call import ForwardedRequest, Progress, ResponseHead
from control_plane.forwarding import FleetBusyError, Forwarder, ReplicaLostError

SSE = ResponseHead(200, ((b"content-type", b"text/event-stream; charset=utf-8"),))
JSON = ResponseHead(200, ((b"content-type", b"application/json"),))
REFUSAL = ResponseHead(429, ((b"content-type", b"application/json"), (b"retry-after", b"7")))
TOKEN, END, PING = b'data: {"text":"a"}\n\n', b"data: [DONE]\n\n", b": ping\n\n"
LOST, BUSY = ReplicaLostError(), FleetBusyError()

Script = Sequence[ResponseHead | bytes | Exception]


async def ask(*scripts: Script, path: str = "/generate") -> tuple[ResponseHead, bytes, Forwarder, int]:
    """Ask replicas that behave as `scripts` say, in this order. Returns head, body, forwarder and how many replicas were asked."""
    left = list(scripts)

    async def call(request: ForwardedRequest) -> AsyncGenerator[ResponseHead | bytes, None]:
        for item in left.pop(0):
            if isinstance(item, Exception):
                raise item
            yield item

    forwarder = Forwarder(call)
    head, pieces = await forwarder.answer(ForwardedRequest("POST", path))
    body = b"".join([piece async for piece in pieces])
    return head, body, forwarder, len(scripts) - len(left)


@pytest.mark.parametrize(
    "first",
    [(LOST,), (SSE, LOST), (SSE, PING, LOST)],
    ids=["before the head", "before a token", "after a ping"],
)
def test_a_stream_without_a_token_goes_on_elsewhere(first: Script) -> None:
    head, body, forwarder, _ = asyncio.run(ask(first, (SSE, TOKEN, END)))
    assert head == SSE
    assert body == b"".join(piece for piece in first if isinstance(piece, bytes)) + TOKEN + END
    assert (forwarder.retries_total, forwarder.broken_total) == (1, 0)


@pytest.mark.parametrize("ping", [b"", PING], ids=["alone", "joined with a ping"])
def test_a_stream_with_a_token_ends_in_one_error(ping: bytes) -> None:
    _, body, forwarder, asked = asyncio.run(ask((SSE, ping + TOKEN, LOST), (SSE, TOKEN, END)))
    assert asked == 1
    body = body.removeprefix(ping)
    token, error, done, rest = body.decode().split("\n\n")
    assert (token, done, rest) == (TOKEN.decode().strip(), "data: [DONE]", "")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "replica_lost"
    assert (forwarder.retries_total, forwarder.broken_total) == (0, 1)


def test_the_route_of_responses_has_an_error_event_of_its_own() -> None:
    _, body, _, _ = asyncio.run(ask((SSE, TOKEN, LOST), path="/v1/responses"))
    name, data = body.decode().split("\n\n")[1].split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["type"] == "error"


def test_a_whole_answer_runs_elsewhere_though_half_of_it_had_come() -> None:
    head, body, forwarder, _ = asyncio.run(ask((JSON, b'{"half', LOST), (JSON, b'{"who', b'le"}')))
    assert (head, body) == (JSON, b'{"whole"}')
    assert forwarder.retries_total == 1


@pytest.mark.parametrize("scripts", [((LOST,), (LOST,)), ((JSON, b"{", LOST), (JSON, LOST))])
def test_it_runs_twice_at_most(scripts: tuple[Script, ...]) -> None:
    head, body, _, asked = asyncio.run(ask(*scripts, (JSON, b"{}")))
    assert asked == 2
    assert head.status == 503
    assert (b"retry-after", b"1") in head.headers
    assert json.loads(body)["error"]["code"] == "replica_lost"


def test_the_second_replica_may_die_too_or_refuse_while_the_client_reads() -> None:
    for second, code in (((SSE, LOST), "replica_lost"), ((BUSY,), "overloaded"), ((SSE, TOKEN, LOST), "replica_lost")):
        _, body, _, asked = asyncio.run(ask((SSE, PING, LOST), second, (SSE, TOKEN, END)))
        assert asked == 2
        assert body.endswith(END)
        assert body.count(b"error") == 2  # the key, and the type's name
        assert code.encode() in body


def test_what_a_replica_answers_passes_as_it_is() -> None:
    head, body, forwarder, asked = asyncio.run(ask((REFUSAL, b'{"error"', b": {}}")))
    assert (head, body, asked) == (REFUSAL, b'{"error": {}}', 1)
    assert forwarder.retries_total == forwarder.refused_total == 0


def test_a_full_fleet_refuses() -> None:
    head, _, forwarder, _ = asyncio.run(ask((BUSY,)))
    assert (head.status, forwarder.refused_total) == (429, 1)


def test_the_router_hears_of_an_answer_once_it_begins() -> None:
    async def call(request: ForwardedRequest) -> AsyncGenerator[ResponseHead | bytes, None]:
        events.append("called")
        yield SSE
        events.append("read on")
        yield TOKEN

    async def scenario() -> None:
        request = ForwardedRequest("POST", "/generate", progress=Progress(lambda: events.append("answered")))
        _, pieces = await Forwarder(call).answer(request)
        await anext(pieces)
        await pieces.aclose()

    events: list[str] = []
    asyncio.run(scenario())
    assert events == ["called", "answered", "read on"]
