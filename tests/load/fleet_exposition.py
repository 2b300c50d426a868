"""A fleet's exposition at `/fleet/metrics` without a fleet: figures that grow with every scrape, rendered as the ingress renders them."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from control_plane.fleet_metrics import COUNTERS, GAUGES, INGRESS, render

REPLICAS = ("a", "b", "c")


class FleetStats:
    """What `/fleet/stats` would answer; its figures grow each time."""

    def __init__(self) -> None:
        self._scrapes = 0

    def next(self) -> dict[str, Any]:
        self._scrapes += 1
        figures = {**dict.fromkeys(GAUGES, 0.5), **dict.fromkeys(COUNTERS, 10 * self._scrapes)}
        return {"replicas": [{"replica": replica, **figures} for replica in REPLICAS], **dict.fromkeys(INGRESS, self._scrapes)}


@contextmanager
def serving_fleet_metrics() -> Iterator[str]:
    """Serve the exposition. Yields its address."""
    stats = FleetStats()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            exposition, content_type = render(stats.next())
            self.send_response(200 if self.path == "/fleet/metrics" else 404)
            self.send_header("Content-Type", content_type)
            self.end_headers()
            self.wfile.write(exposition)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
