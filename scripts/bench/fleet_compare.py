"""Does the simulator tell the truth? The same conversations on three real servers and on three simulated ones: hit rate and p99 TTFT.

The servers run in this process on `FakeBackend`, whose steps sleep, behind the real router; requests go through the whole ASGI application.
What a step costs is measured first, on one of them alone. The bar is 15 %; a busy machine breaks it, so run this on a quiet one.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count

import fleet_fake
from fleet_model import StepCost
from fleet_run import FleetRun, FleetShape, Outcome
from fleet_workload import CHUNK, Session, Workload, WorkloadShape

from control_plane.asgi_call import ForwardedRequest
from control_plane.fleet_router import FleetRouter
from control_plane.prefix_index import PrefixIndex
from control_plane.replica import ReplicaServer
from control_plane.routing_key import RoutingKey
from control_plane.routing_policy import PrefixPolicy
from inference_server.config import Settings
from inference_server.core.chunk_hash import ChunkHasher
from inference_server.core.kv_layout import LayerGroup

SALT = b"salt"
FULL_ONLY = (LayerGroup((0,), 1, 1, 2),)  # the simulator knows no windows
TEXT = range(32, 127)
BAR = 0.15


@dataclass(frozen=True, slots=True)
class Answer:
    """Seconds from the call on."""

    ttft_s: float
    total_s: float
    token_ids: list[int]
    cached_tokens: int


class RealFleet:
    """Servers, a router, and what came of the requests. Times count from `began`."""

    def __init__(self, servers: Sequence[ReplicaServer], shape: WorkloadShape, warmup_s: float) -> None:
        self.outcome = Outcome()
        self._servers = {f"r{index}": server for index, server in enumerate(servers)}
        self._router = FleetRouter(PrefixPolicy(seed=0), PrefixIndex(2**16))
        self._router.set_replicas(self._servers)
        self._hasher = ChunkHasher(SALT, CHUNK)
        self._shape = shape
        self._warmup_s = warmup_s
        self._began = time.monotonic()
        self._sessions = count()

    async def run(self, workload: Workload, seconds: float) -> Outcome:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._report(seconds))
            for start, session in workload.sessions():
                if start > seconds:
                    break
                await asyncio.sleep(self._began + start - time.monotonic())
                tasks.create_task(self._converse(session, seconds))
        return self.outcome

    async def _report(self, seconds: float) -> None:
        while time.monotonic() - self._began < seconds:
            await asyncio.sleep(1.0)
            for name, server in self._servers.items():
                self._router.observe(name, server.report())

    async def _converse(self, session: Session, seconds: float) -> None:
        """The session's prompt, texts of its own, and the model's own answers between them."""
        ids = random.Random(session.names[0]).choices(TEXT, k=self._shape.shared_tokens)
        text = random.Random(next(self._sessions))
        while session.turns_left > 0 and time.monotonic() - self._began < seconds:
            key, _, output = session.turn(self._shape)
            ids += text.choices(TEXT, k=key.num_tokens - len(ids))
            ids += await self._ask(ids, output)
            await asyncio.sleep(session.think_s(self._shape))

    async def _ask(self, ids: list[int], output: int) -> list[int]:
        key = RoutingKey(tuple(self._hasher.chain(ids)), len(ids), CHUNK)
        name = self._router.choose(key)
        trip = self._router.began(name, key)
        answer = await ask(self._servers[name], ids, output, partial(self._router.answered, trip))
        self._router.ended(trip)
        ended_s = time.monotonic() - self._began
        if ended_s >= self._warmup_s:
            out = self.outcome
            out.requests += 1
            out.ttft.append(answer.ttft_s)
            out.hit_tokens += answer.cached_tokens
            out.prompt_tokens += len(ids)
        return answer.token_ids


async def ask(server: ReplicaServer, ids: list[int], output: int, answered: Callable[[], object]) -> Answer:
    """One streamed completion."""
    body = {"prompt": ids, "max_tokens": output, "ignore_eos": True, "stream": True, "return_token_ids": True}
    body |= {"stream_options": {"include_usage": True}}
    headers = ((b"content-type", b"application/json"),)
    began, first, raw = time.monotonic(), 0.0, b""
    async for item in server.call(ForwardedRequest("POST", "/v1/completions", headers=headers, body=json.dumps(body).encode())):
        if isinstance(item, bytes):
            if not first:
                first = time.monotonic()
                answered()
            raw += item
    events = [json.loads(line[6:]) for line in raw.split(b"\n\n") if line.startswith(b"data: {")]
    tokens = [token for event in events for choice in event["choices"] for token in choice.get("token_ids", ())]
    cached = events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    return Answer(first - began, time.monotonic() - began, tokens, cached)


async def measure(server: ReplicaServer) -> StepCost:
    """What a step costs with nothing else, and what a prompt token adds; the best of a few."""
    rng, short, long, tokens = random.Random(1), 64, 1984, 50
    answers = {size: [await ask(server, rng.choices(TEXT, k=size), tokens, lambda: None) for _ in range(5)] for size in (short, long)}
    step_s = min((answer.total_s - answer.ttft_s) / (tokens - 1) for answer in answers[short])
    first, later = (min(answer.ttft_s for answer in answers[size]) for size in (short, long))
    return StepCost(step_s, 0.0, max(0.0, (later - first) / (long - short)))


async def real(args: argparse.Namespace, shape: WorkloadShape) -> tuple[StepCost, Outcome]:
    settings = Settings(_env_file=None, max_batch_size=256)
    load = partial(fleet_fake.load, groups=FULL_ONLY)
    async with AsyncExitStack() as stack:
        servers = [ReplicaServer(settings, SALT, load) for _ in range(args.replicas)]
        for server in servers:
            await server.start()
            stack.push_async_callback(server.stop)
        cost = await measure(servers[0])
        fleet = RealFleet(servers, shape, args.warmup)
        return cost, await fleet.run(Workload(shape, args.seed), args.warmup + args.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warmup", type=float, default=15.0)
    parser.add_argument("--sessions-per-s", type=float, default=0.2, help="for each replica")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    shape = WorkloadShape(args.sessions_per_s * args.replicas, turns=3.0, think_s=4.0, shared_prompts=10)
    cost, measured = asyncio.run(real(args, shape))
    router = FleetRouter(PrefixPolicy(seed=0), PrefixIndex(2**16))
    simulated = FleetRun(FleetShape(args.replicas, cost), router, Workload(shape, args.seed), args.warmup).run(args.warmup + args.seconds)
    print(f"a step {1e3 * cost.base_s:.1f} ms, a prompt token {1e6 * cost.token_s:.1f} us")
    print(f"{measured.requests} requests, {simulated.requests} simulated")
    apart = []
    for name, real_value, simulated_value in (
        ("hit rate", measured.hit_rate, simulated.hit_rate),
        ("p99 TTFT", measured.ttft_at(0.99), simulated.ttft_at(0.99)),
    ):
        apart.append(abs(simulated_value / real_value - 1))
        print(f"{name}: real {real_value:.3f}, simulated {simulated_value:.3f}, {apart[-1]:.0%} apart")
    if max(apart) > BAR:
        sys.exit(f"more than {BAR:.0%} apart")


if __name__ == "__main__":
    main()
