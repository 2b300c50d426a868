"""Fleets of fake models for the tests that kill, update and scale them, and the requests of these tests."""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import fleet_fake
import httpx
import psutil
from fleet_local import PORT
from ray import serve

from control_plane.deployment import fleet
from control_plane.options import FleetOptions
from inference_server.config import Settings

URL = f"http://127.0.0.1:{PORT}"
SETTINGS: dict[str, Any] = {"served_model_name": "fake", "max_batch_size": 16, "max_queue_size": 16, "drain_timeout_s": 5.0}


def deploy(name: str, prefix: str, replicas: int, **options: Any) -> None:
    settings = Settings(_env_file=None, **SETTINGS)  # type: ignore[call-arg]
    serve.run(fleet(settings, FleetOptions(replicas, **options), fleet_fake.load), name=name, route_prefix=prefix)


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=URL, timeout=120, trust_env=False, limits=httpx.Limits(max_connections=None))


async def stats(http: httpx.AsyncClient, prefix: str = "") -> list[dict[str, Any]]:
    answer: dict[str, Any] = (await http.get(f"{prefix}/fleet/stats")).json()
    return answer["replicas"]


def replica_pids(app: str) -> list[int]:
    """The process ids of an application's replicas, found by the name that Ray gives the processes."""
    return [
        child.pid
        for child in psutil.Process().children(recursive=True)
        if " ".join(child.cmdline()).startswith(f"ray::ServeReplica:{app}:Replica")
    ]


@dataclass
class Stream:
    """A stream that has ended. events: its data, without [DONE]."""

    status: int
    events: list[dict[str, Any]]
    done: bool

    @property
    def errors(self) -> int:
        return sum("error" in event for event in self.events)

    @property
    def finished(self) -> bool:
        return bool(self.events) and bool(self.events[-1].get("done"))


async def stream(http: httpx.AsyncClient, body: dict[str, Any], started: "Counter[str] | None" = None) -> Stream:
    """Read one stream to its end. started: counts the streams that have had a token."""
    lines: list[str] = []
    async with http.stream("POST", "/generate", json={**body, "stream": True}) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                lines.append(line.removeprefix("data: "))
                if started is not None and len(lines) == 1:
                    started["streams"] += 1
    return Stream(answer.status_code, [json.loads(line) for line in lines if line != "[DONE]"], lines[-1:] == ["[DONE]"])


async def until(condition: Any, limit_s: float = 90.0) -> None:
    end = time.monotonic() + limit_s
    while not await condition():
        assert time.monotonic() < end, "the condition never came true"
        await asyncio.sleep(0.1)
