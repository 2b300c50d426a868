"""What the routing policy has to achieve, on simulated replicas: even load under a hot prefix, cache hits, and no lost request."""

from itertools import count

import pytest
from fleet_model import Job, SimReplica, StepCost
from fleet_run import FleetRun, FleetShape, Outcome
from fleet_workload import Workload, WorkloadShape

from control_plane.fleet_router import FleetRouter
from control_plane.prefix_index import PrefixIndex
from control_plane.routing_key import RoutingKey
from control_plane.routing_policy import LeastLoaded, PrefixPolicy, RoundRobin, RoutingPolicy

COST = StepCost(0.01, 0.0, 0.0001)


def outcome(policy: RoutingPolicy, workload: WorkloadShape, fleet: FleetShape | None = None, seconds: float = 25.0) -> Outcome:
    fleet = fleet or FleetShape(8, COST)
    return FleetRun(fleet, FleetRouter(policy, PrefixIndex(100_000)), Workload(workload, seed=3), warmup_s=10.0).run(10.0 + seconds)


def test_a_hot_prefix_never_pins_the_fleet_to_one_replica() -> None:
    shape = WorkloadShape(sessions_per_s=90.0, turns=1.0, hot_share=0.2, zipf=0.0, shared_prompts=5000, shared_tokens=1024)
    fleet = FleetShape(8, StepCost(0.01, 0.0, 0.00003))
    out = outcome(PrefixPolicy(seed=1), shape, fleet)
    turns = outcome(RoundRobin(), shape, fleet)
    assert len(out.imbalance) > 20
    assert max(out.imbalance) <= 1.5
    assert out.hit_rate > 1.3 * turns.hit_rate
    assert out.ttft_at(0.99) < 1.2 * turns.ttft_at(0.99)


def test_conversations_find_their_prefixes() -> None:
    shape = WorkloadShape(sessions_per_s=12.0)
    by_policy = {type(policy).__name__: outcome(policy, shape) for policy in (PrefixPolicy(seed=1), LeastLoaded(1), RoundRobin())}
    prefix = by_policy["PrefixPolicy"]
    assert prefix.requests > 300
    assert prefix.hit_rate > 0.7
    assert by_policy["LeastLoaded"].hit_rate < by_policy["RoundRobin"].hit_rate + 0.05 < 0.75 * prefix.hit_rate
    assert prefix.ttft_at(0.99) < min(by_policy["LeastLoaded"].ttft_at(0.99), by_policy["RoundRobin"].ttft_at(0.99))


def test_replicas_die_and_nothing_is_lost() -> None:
    out = outcome(PrefixPolicy(seed=1), WorkloadShape(sessions_per_s=12.0), FleetShape(8, COST, fail_every_s=7.0, restart_s=5.0))
    assert out.retried > 0
    assert out.broken > 0
    assert out.requests > 300


def test_the_way_to_a_replica_takes_its_time_and_who_finds_it_dead_goes_elsewhere() -> None:
    shape = WorkloadShape(sessions_per_s=4.0, turns=1.0, said_tokens=10.0)
    near, far = (outcome(PrefixPolicy(seed=1), shape, FleetShape(2, COST, front_s=(way,))) for way in (0.0, 0.5))
    assert far.ttft_at(0.5) == pytest.approx(near.ttft_at(0.5) + 0.5, abs=0.05)
    dying = outcome(PrefixPolicy(seed=1), shape, FleetShape(2, COST, fail_every_s=3.0, restart_s=1.0, front_s=(0.5,)))
    assert dying.requests + dying.broken >= far.requests - 4  # requests that break in the warm-up are counted too
    assert max(dying.ttft) > 1.0


def test_a_replica_takes_the_time_that_its_steps_take() -> None:
    """Two prompts of 100 tokens, of which the second has its first chunk cached, with answers of 3 and 5 tokens."""
    events: list[tuple[float, int, object]] = []
    order = count()
    ends: list[tuple[float, float | None]] = []
    replica = SimReplica("r", StepCost(1.0, 0.25, 0.01), 10, lambda time, callback: events.append((time, next(order), callback)))
    for output in (3, 5):
        key = RoutingKey((1,), 100, 64)
        replica.add(Job(key, [1], output, 0.0, lambda job: None, lambda job, now: ends.append((now, job.first_token))), 0.0)
    while events:
        event = min(events)
        events.remove(event)
        event[2](event[0])  # type: ignore[operator]
    # The first prompt starts alone: 2 s. Then its row is measured, first alone and then beside 8 tokens of the second prompt, as
    # `ChunkBudget` decides. It ends. The 28 tokens that are left are computed alone, and so are the last four tokens of that answer.
    assert ends[0] == (pytest.approx(2.0 + 1.25 + 1.33), 2.0)
    assert ends[1] == (pytest.approx(4.58 + 1.28 + 4 * 1.25), pytest.approx(4.58 + 1.28))
    assert (replica.hit_tokens, replica.miss_tokens, replica.tokens) == (64, 136, 0)
