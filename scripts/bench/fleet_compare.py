"""Does the simulator tell the truth? Put the same conversations to a real fleet on Ray and to a simulated one; compare hit rate, p99 TTFT.

Replicas are whole servers on a fake model whose steps sleep; requests go over HTTP, through Serve's proxy, the ingress and its router.
First it measures, one request at a time, what a step costs and what the way to the replica costs; nothing is fitted to the results that
are compared. Figures pool the requests of all seeds, the simulated ones also those of several draws of the router, since a p99 of a
hundred requests is off by half. The bar is a difference of 15 % in each workload; a busy machine breaks it, less easily where steps are
long. Needs the extra `fleet`.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from functools import partial

import fleet_fake
import httpx
from fleet_local import cluster
from fleet_real import Measured, RealFleet, measure
from fleet_run import FleetRun, FleetShape, Outcome
from fleet_workload import Workload, WorkloadShape
from ray import serve

from control_plane.deployment import fleet
from control_plane.fleet_router import FleetRouter
from control_plane.options import FleetOptions
from control_plane.prefix_index import PrefixIndex
from control_plane.routing_policy import PrefixPolicy
from inference_server.config import Settings
from inference_server.core.kv_layout import LayerGroup

FULL_ONLY = (LayerGroup((0,), 1, 1, 2),)  # the simulator knows no windows
BAR = 0.15
DRAWS = 5
WORKLOADS = {
    "chats": WorkloadShape(1.2, turns=4.0, think_s=4.0, shared_prompts=10, answer_tokens=10.0),
    "questions": WorkloadShape(5.0, turns=1.0, shared_prompts=40, answer_tokens=8.0),
    "long talks": WorkloadShape(0.6, turns=6.0, think_s=2.0, shared_prompts=4, shared_tokens=2048, said_tokens=400.0, answer_tokens=10.0),
}


def simulated(args: argparse.Namespace, measured: Measured, shape: WorkloadShape, seed: int, draw: int) -> Outcome:
    router = FleetRouter(PrefixPolicy(seed=draw), PrefixIndex(2**19))
    fleet_shape = FleetShape(args.replicas, measured.cost, front_s=measured.front_s)
    return FleetRun(fleet_shape, router, Workload(shape, seed), args.warmup).run(args.warmup + args.seconds)


async def compare(args: argparse.Namespace, url: str) -> list[float]:
    """The relative difference between the real fleet and the simulated one, for each workload and figure."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, limits=limits) as http:
        measured = await measure(http)
        print(measured)
        apart = []
        for name in args.workloads:
            shape = WORKLOADS[name]
            seeds = range(args.seed, args.seed + args.seeds)
            real = [await RealFleet(http, shape, args.warmup).run(Workload(shape, seed), args.warmup + args.seconds) for seed in seeds]
            virtual = [simulated(args, measured, shape, seed, draw) for seed in seeds for draw in range(DRAWS)]
            apart += show(name, real, virtual)
    return apart


def show(name: str, real: Sequence[Outcome], virtual: Sequence[Outcome]) -> list[float]:
    """Print the figures of a workload. Returns the relative differences of those that have to meet the bar; the median TTFT has none."""
    one, other = pooled(real), pooled(virtual)
    print(f"{name}: {one.requests} requests, {other.requests} simulated in {len(virtual)} runs")
    figures: dict[str, Callable[[Outcome], float]] = {
        "p50 TTFT": lambda out: out.ttft_at(0.5),
        "hit rate": lambda out: out.hit_rate,
        "p99 TTFT": lambda out: out.ttft_at(0.99),
    }
    apart = []
    for figure, value in figures.items():
        apart.append(abs(value(other) / value(one) - 1))
        real_text, virtual_text = (
            f"{value(pooled(runs)):.3f} ({min(map(value, runs)):.3f} to {max(map(value, runs)):.3f})" for runs in (real, virtual)
        )
        print(f"  {figure}: real {real_text}, simulated {virtual_text}, {apart[-1]:.0%} apart", flush=True)
    return apart[1:]


def pooled(outcomes: Sequence[Outcome]) -> Outcome:
    """One outcome with the requests of all."""
    every = Outcome(ttft=[seconds for out in outcomes for seconds in out.ttft])
    for out in outcomes:
        every.requests += out.requests
        every.hit_tokens += out.hit_tokens
        every.prompt_tokens += out.prompt_tokens
    return every


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--warmup", type=float, default=10.0)
    parser.add_argument("--step-ms", type=float, default=100.0)
    parser.add_argument("--token-us", type=float, default=75.0, help="what a prompt token adds to a step, in microseconds")
    parser.add_argument("--seed", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    load = partial(fleet_fake.load, step_s=args.step_ms / 1e3, token_s=args.token_us / 1e6, groups=FULL_ONLY, hollow=True)
    with cluster() as url:
        serve.run(fleet(Settings(_env_file=None, max_batch_size=256), FleetOptions(args.replicas), load), name="fleet", route_prefix="/")
        apart = asyncio.run(compare(args, url))
    if max(apart) > BAR:
        sys.exit(f"more than {BAR:.0%} apart")


if __name__ == "__main__":
    main()
