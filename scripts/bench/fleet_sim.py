"""Simulate fleets of 10, 100 and 1,000 replicas under three routing policies: hit rate, p99 TTFT and imbalance, as a table and as a PNG.

The router, the policy and the index are the real ones; a replica is a cost model (`fleet_model.py`) and time is virtual, so a figure
says how policies compare and not what a machine gives. Replicas die and come back. The rate of requests grows with the fleet, the size of
the index does not. --hot is the share of all sessions that begin with one and the same prompt.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet_model import StepCost
from fleet_run import FleetRun, FleetShape, Outcome
from fleet_workload import Workload, WorkloadShape
from matplotlib.figure import Figure

from control_plane.fleet_router import FleetRouter
from control_plane.prefix_index import PrefixIndex
from control_plane.routing_policy import LeastLoaded, PrefixPolicy, RoundRobin, RoutingPolicy

POLICIES: dict[str, Callable[[argparse.Namespace], RoutingPolicy]] = {
    "prefix": lambda args: PrefixPolicy(args.beta, args.quiet_tokens, seed=args.seed),
    "least-loaded": lambda args: LeastLoaded(seed=args.seed),
    "round-robin": lambda args: RoundRobin(),
}


@dataclass(frozen=True, slots=True)
class Point:
    policy: str
    replicas: int
    outcome: Outcome
    index_bytes: int
    wall_s: float


def simulate(policy: str, replicas: int, args: argparse.Namespace) -> Point:
    began = time.perf_counter()
    router = FleetRouter(POLICIES[policy](args), PrefixIndex(args.index_capacity))
    cost = StepCost(args.base_ms / 1e3, args.row_us / 1e6, args.token_us / 1e6, args.max_rows)
    shape = FleetShape(replicas, cost, args.cache_chunks, args.report_s, args.fail_every_s * 100 / replicas if args.fail_every_s else 0.0)
    workload = Workload(WorkloadShape(args.sessions_per_s * replicas, hot_share=args.hot), args.seed)
    outcome = FleetRun(shape, router, workload, args.warmup).run(args.warmup + args.seconds)
    return Point(policy, replicas, outcome, router.index.num_bytes(), time.perf_counter() - began)


def row(point: Point) -> str:
    out = point.outcome
    return (
        f"{point.replicas:>8} {point.policy:<13} {out.requests:>8} {out.hit_rate:>7.1%} {out.ttft_at(0.5):>8.3f} {out.ttft_at(0.99):>8.3f}"
        f" {out.mean_imbalance:>7.2f} {out.retried:>7} {out.broken:>7} {point.index_bytes / 2**20:>7.1f} {point.wall_s:>6.0f}"
    )


HEADER = "replicas policy        requests    hits TTFT p50  p99 (s) imbal.  retried  broken idx MiB wall s"


def draw(points: Sequence[Point], path: Path) -> None:
    figure = Figure(figsize=(12, 4), layout="constrained")
    panels: list[tuple[str, Callable[[Outcome], float]]] = [
        ("prompt tokens from the cache, %", lambda out: 100 * out.hit_rate),
        ("p99 time to first token, s", lambda out: out.ttft_at(0.99)),
        ("busiest replica / mean", lambda out: out.mean_imbalance),
    ]
    for axes, (label, value) in zip(figure.subplots(1, 3), panels, strict=True):
        for policy in dict.fromkeys(point.policy for point in points):
            own = [point for point in points if point.policy == policy]
            axes.plot([point.replicas for point in own], [value(point.outcome) for point in own], marker="o", label=policy)
        axes.set(xlabel="replicas", ylabel=label, xscale="log", ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=130)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=POLICIES)
    parser.add_argument("--seconds", type=float, default=60.0, help="simulated time after the warm-up")
    parser.add_argument("--warmup", type=float, default=30.0)
    parser.add_argument("--sessions-per-s", type=float, default=1.5, help="for each replica")
    parser.add_argument("--hot", type=float, default=0.0, help="share of sessions that begin with the same prompt")
    parser.add_argument("--fail-every-s", type=float, default=30.0, help="time between two deaths in a hundred replicas; 0 for none")
    parser.add_argument("--report-s", type=float, default=1.0)
    parser.add_argument("--cache-chunks", type=int, default=4096, help="cached chunks of 64 tokens, for each replica")
    parser.add_argument("--index-capacity", type=int, default=2**20)
    parser.add_argument("--beta", type=float, default=1.0)
    parser.add_argument("--quiet-tokens", type=float, default=4096)
    parser.add_argument("--base-ms", type=float, default=4.0, help="a step's base cost in milliseconds")
    parser.add_argument("--row-us", type=float, default=20.0, help="what a decoding row adds to it, in microseconds")
    parser.add_argument("--token-us", type=float, default=50.0, help="what a prompt token adds to it, in microseconds")
    parser.add_argument("--max-rows", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, help="PNG to write")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    print(HEADER)
    points = []
    for replicas in args.replicas:
        for policy in args.policies:
            points.append(simulate(policy, replicas, args))
            print(row(points[-1]), flush=True)
    if args.plot:
        draw(points, args.plot)


if __name__ == "__main__":
    main()
