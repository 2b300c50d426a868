"""`python -m inference_server`: the server from the command line, with a flag for every setting (`--help`)."""

import os
import signal
import socket
import sys
from collections.abc import Sequence
from functools import partial
from types import FrameType

import uvicorn

from inference_server.api.http_protocol import HttpProtocol
from inference_server.config import Settings
from inference_server.server import create_app

GRACE_S = 5  # after the drain, for clients that read slowly


def main(argv: Sequence[str] = ()) -> None:
    """Serve until a signal ends the process. argv: flags, without the program's name."""
    settings = Settings.from_cli(argv)
    app = create_app(settings)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, http=HttpProtocol, timeout_graceful_shutdown=GRACE_S, ws="none"))
    sock = listen(settings.host, settings.port, server.config.backlog)  # whoever reads the address may connect at once
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, partial(leave, server))
    sys.stdout.write(f"inference-server: {local_url(settings.host, sock.getsockname()[1])}\n")
    sys.stdout.flush()
    server.run(sockets=[sock])


def leave(server: uvicorn.Server, signum: int, frame: FrameType | None) -> None:
    """What a signal does before uvicorn takes signals, and once it has shut down, when it raises them again: who asked has not failed."""
    if server.started:
        sys.exit()
    os._exit(128 + signum)  # nothing has begun that would have to end in order


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Ends the process with one line where that cannot be."""
    is_ipv6 = ":" in host
    try:
        family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=backlog, dualstack_ipv6=is_ipv6)
    except OSError as error:
        sys.stderr.write(f"inference-server: HOST, PORT: {error.strerror}\n")
        raise SystemExit(2) from None


def local_url(host: str, port: int) -> str:
    """Where a browser on this machine finds a server that listens there."""
    if host in ("127.0.0.1", "0.0.0.0", "::"):
        host = "localhost"
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


if __name__ == "__main__":
    main(sys.argv[1:])
