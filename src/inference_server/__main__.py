"""`python -m inference_server`: the server from the command line, with a flag for every setting (`--help`)."""

import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import uvicorn

from inference_server.api.http_protocol import HttpProtocol
from inference_server.config import Settings
from inference_server.server import create_app

GRACE_S = 5  # after the drain, for clients that read slowly


def main(argv: Sequence[str] = ()) -> None:
    """Serve until a signal ends the process. argv: flags, without the program's name."""
    settings = Settings.from_cli(argv)
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_config=None,
        http=HttpProtocol,
        timeout_graceful_shutdown=GRACE_S,
        ws="none",
    )
    sock = config.bind_socket()
    sock.listen(config.backlog)  # whoever reads the address may connect at once
    host = "localhost" if settings.host in ("127.0.0.1", "0.0.0.0", "::", "::1") else settings.host
    sys.stdout.write(f"inference-server: http://{host}:{sock.getsockname()[1]}/\n")
    sys.stdout.flush()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again once it has shut down; who was asked to end has not failed
        uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    main(sys.argv[1:])
