"""The benchmarks' client against a server that sends prepared bytes, piece by piece."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest
from http_load.client import Answer, LoadClient
from http_load.openai_stream import COMPLETIONS

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}}
DONE = b"data: [DONE]\n\n"


def event(text: str, **fields: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text, **fields}], "usage": None}).encode() + b"\n\n"


def chunk(body: bytes) -> bytes:
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


END = chunk(b"")


async def ask(pieces: Sequence[bytes | Callable[[], Awaitable[None]]], timeout_s: float = 5.0, close: bool = True) -> Answer:
    """The answer from a server that writes the pieces one after the other; a piece that is not bytes is called and awaited."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"authorization: Bearer secret" in head
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        assert json.loads(await reader.readexactly(length)) == {"prompt": "p", "stream": True}
        for piece in pieces:
            if isinstance(piece, bytes):
                writer.write(piece)
                await writer.drain()
            else:
                await piece()
        if not close:
            await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        served.set()

    served = asyncio.Event()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        answer = await LoadClient(f"http://127.0.0.1:{port}", "secret", timeout_s).stream(COMPLETIONS, {"prompt": "p"})
        await served.wait()
    return answer


async def pause() -> None:
    await asyncio.sleep(0.05)


def test_events_with_text_are_timed_and_counted() -> None:
    first, second = chunk(event("a")), chunk(event("bc"))
    role = chunk(b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n')
    usage = chunk(b"data: " + json.dumps(USAGE).encode() + b"\n\n" + DONE)
    answer = asyncio.run(ask([OK, role, pause, first, pause, chunk(b": ping\n\n"), pause, second, usage + END]))
    assert (answer.status, answer.error, answer.text) == (200, None, "abc")
    assert (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens) == (7, 4, 5)
    assert len(answer.events) == 2
    assert answer.sent + 0.04 < answer.events[0] < answer.events[1] - 0.08 < answer.end


def test_an_event_cut_anywhere_is_whole() -> None:
    stream = OK + chunk(event("ä")) + chunk(event("b") + DONE) + END
    for cut in range(1, len(stream), 7):
        answer = asyncio.run(ask([stream[:cut], lambda: asyncio.sleep(0), stream[cut:]]))
        assert (answer.error, answer.text, len(answer.events)) == (None, "äb", 2)


def test_chat_text_and_thoughts_are_text() -> None:
    chat = [chunk(f'data: {{"choices": [{{"delta": {{"{key}": "x"}}}}]}}\n\n'.encode()) for key in ("content", "reasoning_content")]
    answer = asyncio.run(ask([OK, *chat, chunk(DONE), END]))
    assert (answer.text, answer.error) == ("xx", None)


@pytest.mark.parametrize(
    ("pieces", "status", "complaint"),
    [
        ([b"HTTP/1.1 429 Too Many\r\ncontent-length: 4\r\n\r\n", b"full"], 429, "HTTP 429: full"),
        ([OK, chunk(event("a")), END], 200, "ended without"),
        ([OK, chunk(event("a"))], 200, "closed before the end"),
        ([OK, chunk(b'data: {"error": {"message": "broken"}}\n\n' + DONE), END], 200, "broken"),
        ([b"not http\r\n\r\n"], 0, "not HTTP"),
        ([], 0, "closed before the end"),
    ],
)
def test_what_fails_is_said(pieces: list[bytes], status: int, complaint: str) -> None:
    answer = asyncio.run(ask(pieces))
    assert answer.status == status
    assert complaint in str(answer.error)
    assert answer.end >= answer.sent


def test_silence_and_absence_are_errors() -> None:
    assert asyncio.run(ask([OK], timeout_s=0.1, close=False)).error == "timed out"
    begin = time.perf_counter()
    answer = asyncio.run(LoadClient("http://127.0.0.1:9").stream(COMPLETIONS, {}))
    assert answer.status == 0
    assert answer.error
    assert time.perf_counter() - begin < 5
