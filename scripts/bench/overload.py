"""What a full server does when requests arrive at a fixed rate: how soon it refuses some, and how soon it answers those that it lets in.

    python scripts/bench/overload.py --url http://127.0.0.1:8000 --rate 250 --seconds 10

Prints the times of refusals (429) and of answers as the client sees them, with answers of the first half apart from those of the second,
and how long the server took to refuse, from `/metrics`. Connections are kept and used again, as real clients do.
"""

import argparse
import asyncio
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request. sent: seconds from when the first request was due. seconds: until its answer was whole. status: 0 if none came."""

    sent: float
    seconds: float
    status: int


async def offer(url: str, rate: float, seconds: float, body: dict[str, Any]) -> list[Outcome]:
    """POST /generate `rate` times a second, evenly, whatever happens to the requests before."""
    address = urlsplit(url)
    content = json.dumps(body).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    idle: list[Connection] = []
    start = time.perf_counter()

    async def one(due: float) -> Outcome:
        sent = time.perf_counter()
        try:
            connection = _pop_open(idle) or await asyncio.open_connection(address.hostname, address.port)
            status = await _exchange(connection, head.encode() + content)
        except (OSError, asyncio.IncompleteReadError):
            return Outcome(due, time.perf_counter() - sent, 0)
        idle.append(connection)
        return Outcome(due, time.perf_counter() - sent, status)

    tasks = []
    for index in range(round(rate * seconds)):
        due = index / rate
        await asyncio.sleep(max(0.0, start + due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(due)))
    outcomes = await asyncio.gather(*tasks)
    for _, writer in idle:
        writer.close()
    return outcomes


def _pop_open(idle: list[Connection]) -> Connection | None:
    """The connection that was used last and is still open: the server closes those that are idle for long. None if there is none."""
    while idle:
        reader, writer = idle.pop()
        if not reader.at_eof():
            return reader, writer
        writer.close()
    return None


async def _exchange(connection: Connection, request: bytes) -> int:
    """Send the request and read the whole answer. Returns its status."""
    reader, writer = connection
    writer.write(request)
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
    await reader.readexactly(length)
    return int(lines[0].split(" ")[1])


def quantile(values: Sequence[float], share: float) -> float:
    """The quantile by nearest rank; nan without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def share_within(metrics: str, status: int, limit: str) -> float:
    """The share of the responses of /generate with `status` that the server gave within the bucket `limit`. metrics: text of `/metrics`."""
    labels = f'method="POST",route="/generate",status="{status}"'
    counts = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith("inference_server_http_request_duration_seconds_bucket") and labels in line
    }
    total = sum(count for name, count in counts.items() if 'le="+Inf"' in name)
    return sum(count for name, count in counts.items() if f'le="{limit}"' in name) / total if total else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--rate", type=float, default=250)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--max-tokens", type=int, default=32)
    args = parser.parse_args()
    body = {"text": "Tell me a story.", "max_tokens": args.max_tokens, "ignore_eos": True}
    outcomes = asyncio.run(offer(args.url, args.rate, args.seconds, body))
    refused = [outcome.seconds * 1000 for outcome in outcomes if outcome.status == 429]
    half = args.seconds / 2
    shares = ", ".join(f"{name} {quantile(refused, share):.1f} ms" for name, share in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0)))
    print(f"{len(outcomes)} requests, {len(refused)} refused: {shares}")
    for name, answered in (("first", [o for o in outcomes if o.sent < half]), ("second", [o for o in outcomes if o.sent >= half])):
        times = [outcome.seconds for outcome in answered if outcome.status == 200]
        print(f"answered of the {name} half: {len(times)}, p50 {quantile(times, 0.5):.2f} s, p99 {quantile(times, 0.99):.2f} s")
    print(f"other ends: {sum(outcome.status not in (200, 429) for outcome in outcomes)}")
    metrics = httpx.get(f"{args.url}/metrics", trust_env=False).text
    within = ", ".join(f"{limit} s: {share_within(metrics, 429, limit):.1%}" for limit in ("0.01", "0.02", "0.1"))
    print(f"refusals that the server gave within {within}")


if __name__ == "__main__":
    main()
