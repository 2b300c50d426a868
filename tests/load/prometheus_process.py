"""A real Prometheus for tests: the project's own configuration except for targets and intervals, in a folder of its own."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import yaml

Found = TypeVar("Found")


@dataclass(frozen=True)
class Prometheus:
    client: httpx.Client

    def api(self, path: str, **params: str) -> dict[str, Any]:
        """The `data` of the answer. An error, as for a bad expression, fails the test."""
        answer = self.client.get(f"/api/v1/{path}", params=params).json()
        assert answer["status"] == "success", (params, answer)
        return answer["data"]

    def values(self, expression: str) -> list[float]:
        return [float(sample["value"][1]) for sample in self.api("query", query=expression)["result"]]


def eventually(condition: Callable[[], Found], limit_s: float = 30.0) -> Found:
    """The first true value that `condition` returns; it is asked again and again, since Prometheus works in its own time."""
    end = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < end, condition
        time.sleep(0.1)
    return found


@contextmanager
def scraping(binary: str, monitoring: Path, url: str, fleet_url: str, metrics_key: str, folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus with the configuration and rules of `monitoring`. It scrapes a server and a fleet every second, with the key."""
    config = yaml.safe_load((monitoring / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(monitoring / name) for name in config["rule_files"]]
    (scrape,) = config["scrape_configs"]
    scrape["file_sd_configs"] = [{"files": [str(folder / "targets" / "*.yml")]}]
    (folder / "targets").mkdir()
    fleet = {"targets": [urlsplit(fleet_url).netloc], "labels": {"__metrics_path__": "/fleet/metrics"}}  # as docs/scaling.md says
    (folder / "targets" / "server.yml").write_text(yaml.safe_dump([{"targets": [urlsplit(url).netloc]}, fleet]))
    scrape["authorization"] = {"credentials_file": "metrics_key"}  # as the comment in the configuration says
    (folder / "metrics_key").write_text(metrics_key)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    options = {"config.file": folder / "prometheus.yml", "storage.tsdb.path": folder / "data", "web.listen-address": address}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([binary, *(f"--{key}={value}" for key, value in options.items())], stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://{address}", timeout=20, trust_env=False) as client:
            eventually(lambda: _is_ready(client, process, folder / "log"))
            yield Prometheus(client)
    finally:
        process.terminate()
        process.wait(30)


def _is_ready(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False
