"""`BodyLimit` on its own: how long a body may take, and that a whole one lifts the limit. `HeaderLimit` over HTTP."""

import asyncio
from collections.abc import Sequence

import pytest
from api_server import TestServer
from fastapi import HTTPException
from starlette.types import Message, Receive, Scope, Send

from inference_server.api.middleware import BodyLimit

DEADLINE_S = 0.05
LONG = "a" * 40_000


def receive_through_limit(messages: Sequence[Message | float], count: int) -> list[str]:
    """The types of the first `count` messages behind the limit. A number in `messages` is a pause in seconds."""
    source, types = iter(messages), list[str]()

    async def receive() -> Message:
        message = next(source)
        if isinstance(message, float):
            await asyncio.sleep(message)
            message = next(source)
        assert not isinstance(message, float)
        return message

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(count):
            types.append((await receive())["type"])

    async def send(message: Message) -> None: ...

    asyncio.run(BodyLimit(app, max_bytes=100, deadline_s=DEADLINE_S)({"type": "http", "headers": []}, receive, send))
    return types


def piece(more: bool) -> Message:
    return {"type": "http.request", "body": b"{", "more_body": more}


def test_a_body_that_stops_coming_is_408_and_ends_the_connection() -> None:
    with pytest.raises(HTTPException) as refused:
        receive_through_limit([piece(more=True), 5.0, piece(more=False)], 2)
    assert refused.value.status_code == 408
    assert refused.value.headers == {"Connection": "close"}


def test_a_trickle_does_not_put_the_deadline_off() -> None:
    trickle = [part for _ in range(10) for part in (DEADLINE_S / 3, piece(more=True))]
    with pytest.raises(HTTPException, match="did not arrive"):
        receive_through_limit(trickle, 10)


def test_after_the_body_the_wait_for_a_disconnect_has_no_limit() -> None:
    messages = [piece(more=True), piece(more=False), DEADLINE_S * 2, {"type": "http.disconnect"}]
    assert receive_through_limit(messages, 3) == ["http.request", "http.request", "http.disconnect"]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [("/version", {}, 200), ("/version", {"x-long": LONG}, 431), (f"/{LONG}", {}, 414), (f"/version?q={LONG}", {}, 414)],
)
def test_headers_and_targets_have_a_limit(server: TestServer, path: str, headers: dict[str, str], status: int) -> None:
    assert server.client.get(path, headers=headers).status_code == status
