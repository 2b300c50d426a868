"""What a request, and an event of a stream, cost the processes of a fleet: processor time of proxy, ingress and replica on a fake model.

It sends requests for whole answers and requests for streams. The cost of an event is what streams cost more than whole answers, divided by
their events. Processor time depends little on what else the machine does. Needs the extra `fleet`.
"""

import argparse
import asyncio
from collections.abc import Iterator
from functools import partial

import fleet_fake
import httpx
import psutil
from fleet_local import cluster
from ray import serve

from control_plane.deployment import fleet
from control_plane.options import FleetOptions
from inference_server.config import Settings

PARTS = {"proxy": "ray::ProxyActor", "ingress": "ray::ServeReplica:fleet:Ingress", "replica": "ray::ServeReplica:fleet:Replica"}


def processes() -> Iterator[tuple[str, psutil.Process]]:
    for child in psutil.Process().children(recursive=True):
        name = " ".join(child.cmdline())
        yield from ((part, child) for part, start in PARTS.items() if name.startswith(start))


def cpu_s() -> dict[str, float]:
    used = dict.fromkeys(PARTS, 0.0)
    for part, process in processes():
        times = process.cpu_times()
        used[part] += times.user + times.system
    return used


async def send(http: httpx.AsyncClient, number: int, concurrent: int, tokens: int, stream: bool) -> tuple[dict[str, float], int]:
    """Send `number` requests. Returns the processor seconds of each part of the fleet, and how many events came."""
    events, left = 0, iter(range(number))

    async def user() -> None:
        nonlocal events
        for index in left:
            body = {"text": f"{index:04}" * 8, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
            answer = await http.post("/generate", json=body)
            assert answer.status_code == 200, answer.text
            events += answer.content.count(b"\n\n")

    before = cpu_s()
    await asyncio.gather(*(user() for _ in range(concurrent)))
    return {part: used - before[part] for part, used in cpu_s().items()}, events


async def measure(args: argparse.Namespace, url: str) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, limits=limits) as http:
        ask = partial(send, http, concurrent=args.concurrent, tokens=args.tokens)
        await ask(args.requests // 4, stream=True)  # warms up
        whole, _ = await ask(args.requests, stream=False)
        streams, events = await ask(args.requests, stream=True)
        print(f"{args.requests} requests of each kind, {events / args.requests:.1f} events a stream of {args.tokens} tokens")
        for part in PARTS:
            request_ms, event_ms = 1e3 * whole[part] / args.requests, 1e3 * (streams[part] - whole[part]) / events
            print(f"{part:<8} {request_ms:6.2f} ms a request, {event_ms:6.3f} ms an event")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--concurrent", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--step-ms", type=float, default=20.0)
    args = parser.parse_args()
    settings = Settings(_env_file=None, max_batch_size=64)
    load = partial(fleet_fake.load, step_s=args.step_ms / 1e3)
    with cluster() as url:
        serve.run(fleet(settings, FleetOptions(1), load), name="fleet", route_prefix="/")
        asyncio.run(measure(args, url))


if __name__ == "__main__":
    main()
