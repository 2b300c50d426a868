"""An HTTP/1.1 client that can be as impolite as a test wants: it sends any bytes, reads slowly, and leaves at any moment."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any


class CutOffError(Exception):
    """The server ended the connection before the answer was whole."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole response. headers: with names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self, pause_s: float = 0.0) -> Answer:
        """The next whole response. pause_s: wait between two pieces of its body, for a slow reader. Raises CutOffError."""
        try:
            status, headers = await self.head()
            body = [piece async for piece in self._pieces(headers, pause_s)]
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise CutOffError(repr(error)) from None
        return Answer(status, headers, b"".join(body))

    async def head(self) -> tuple[int, dict[str, str]]:
        while True:
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(lines[0].split(" ", 2)[1])
            if status != 100:
                return status, {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}

    async def some(self, count: int) -> bytes:
        """The next bytes as they are, at most `count`; empty at the end."""
        return await self._reader.read(count)

    async def _pieces(self, headers: dict[str, str], pause_s: float) -> AsyncIterator[bytes]:
        if "chunked" not in headers.get("transfer-encoding", ""):
            yield await self._reader.readexactly(int(headers.get("content-length", 0)))
            return
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
            if pause_s:
                await asyncio.sleep(pause_s)
        await self._reader.readexactly(2)

    def reset(self) -> None:
        """End the connection as a killed process or a pulled cable would."""
        connection = self._writer.get_extra_info("socket")
        if connection is not None and connection.fileno() >= 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def connected(address: tuple[str, int], buffer: int | None = None) -> AsyncIterator[Wire]:
    """Open a connection, and close it at the end. buffer: size of the receive buffer in bytes, small for a slow reader."""
    connection = socket.socket()
    connection.setblocking(False)
    if buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    try:
        await asyncio.get_running_loop().sock_connect(connection, address)
    except BaseException:
        connection.close()
        raise
    reader, writer = await asyncio.open_connection(sock=connection, limit=buffer or 2**20)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


def request(path: str, body: Any = None, *headers: str, method: str = "POST") -> bytes:
    """The bytes of a request. body: bytes are sent as they are, anything else as JSON. headers: whole lines."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: chaos", "Content-Type: application/json", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content
