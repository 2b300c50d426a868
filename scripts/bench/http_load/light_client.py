"""Reads many streams over raw sockets at next to no cost: it counts events in the bytes, and parses no JSON but the last event's counts.

For a process of its own beside the server that is measured: each read of a socket costs some microseconds, whatever it brings. It may read
only now and then, since waking a sleeping reader would be the dearest part of the server's write, and over a network there is no reader to
wake. Each stream is one request on one connection, which the server closes. Use `client.py` to know more about an answer.
"""

import json
import re
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from http_load.openai_stream import CHAT, COMPLETIONS, USAGE

_USAGE = re.compile(rb'"completion_tokens":(\d+)')
_DONE = b"data: [DONE]"
_TAIL = 1024  # bytes of an answer's end that surely hold the usage
_READ = 1 << 16
Mark = Callable[[int], None]


@dataclass(slots=True, eq=False)
class Stream:
    """One answer. times: when reads brought events, by `time.perf_counter`. num_tokens: as the server counts them."""

    sent: float
    times: list[float] = field(default_factory=list)
    num_events: int = 0
    num_tokens: int = 0
    tail: bytes = b""

    def take(self, data: bytes, now: float) -> int:
        """Count the events in `data`: each ends in an empty line, and nothing else in an answer of ASCII contains one."""
        num_events = (self.tail[-1:] + data).count(b"\n\n")
        if num_events:
            self.times.append(now)
            self.num_events += num_events
        self.tail = (self.tail + data)[-_TAIL:]
        return num_events

    def close(self) -> None:
        """Take the usage from the answer's end. Raises RuntimeError for an answer that is no whole stream."""
        found = _USAGE.findall(self.tail)
        if _DONE not in self.tail or not found:
            raise RuntimeError(f"not the end of a stream: {self.tail[-200:]!r}")
        self.num_tokens = int(found[-1])


def completion(url: str, prompt: Sequence[int] | str, max_tokens: int, **fields: Any) -> bytes:
    """The bytes of a request for a streamed, greedy completion of exactly `max_tokens` tokens."""
    return _streamed(url, COMPLETIONS, {"prompt": prompt, "max_tokens": max_tokens, **fields})


def chat(url: str, text: str, max_tokens: int) -> bytes:
    """The bytes of such a request for a chat of one message."""
    return _streamed(url, CHAT, {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens})


def _streamed(url: str, path: str, fields: dict[str, Any]) -> bytes:
    content = json.dumps({"temperature": 0, "ignore_eos": True, "stream": True, **USAGE, **fields}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def stream_all(
    url: str, requests: Sequence[bytes], on_full: Mark | None = None, on_thin: Mark | None = None, every_s: float = 0.0
) -> list[Stream]:
    """Send all requests at once and read the streams to their ends. every_s: seconds between reads; 0 to sleep until something comes.

    on_full: called with the number of events so far once every stream has had its first event; on_thin: likewise, when the first stream
    ends. Raises OSError, or RuntimeError for an answer that is no stream.
    """
    parts = urlsplit(url)
    selector = selectors.DefaultSelector()
    streams: list[Stream] = []
    connections = [socket.create_connection((parts.hostname, parts.port)) for _ in requests]
    for connection, request in zip(connections, requests, strict=True):
        streams.append(Stream(time.perf_counter()))
        connection.sendall(request)
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ, streams[-1])
    num_silent = num_open = len(streams)
    num_events = 0
    while num_open:
        time.sleep(every_s)
        for key, _ in selector.select():
            reader, stream = key.fileobj, key.data
            assert isinstance(reader, socket.socket)
            if not (data := reader.recv(_READ)):
                selector.unregister(reader)
                reader.close()
                stream.close()
                if num_open == len(streams) and on_thin is not None:
                    on_thin(num_events)
                num_open -= 1
                continue
            was_silent = not stream.times
            num_events += stream.take(data, time.perf_counter())
            if was_silent and stream.times:
                num_silent -= 1
                if not num_silent and on_full is not None:
                    on_full(num_events)
    selector.close()
    return streams
