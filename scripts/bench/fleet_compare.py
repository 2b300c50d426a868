"""Does the simulator tell the truth? The same conversations on three real servers and on three simulated ones: hit rate and p99 TTFT.

The servers run in this process on `FakeBackend`, whose steps sleep, behind the real router; requests go through the whole ASGI application.
What a step costs is measured first, on one of them alone. The bar is 15 %; a busy machine breaks it, so run this on a quiet one.
"""

import argparse
import asyncio
import random
import sys
from contextlib import AsyncExitStack
from functools import partial

import fleet_fake
from fleet_model import StepCost
from fleet_real import SALT, TEXT, RealFleet, ask
from fleet_run import FleetRun, FleetShape, Outcome
from fleet_workload import Workload, WorkloadShape

from control_plane.fleet_router import FleetRouter
from control_plane.prefix_index import PrefixIndex
from control_plane.replica import ReplicaServer
from control_plane.routing_policy import PrefixPolicy
from inference_server.config import Settings
from inference_server.core.kv_layout import LayerGroup

FULL_ONLY = (LayerGroup((0,), 1, 1, 2),)  # the simulator knows no windows
BAR = 0.15


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
