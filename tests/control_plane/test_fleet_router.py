"""Routing decisions by example, on the real index and policy."""

from control_plane.fleet_router import UNCOMPUTED_WEIGHT, FleetRouter
from control_plane.prefix_index import PrefixIndex
from control_plane.replica_report import ReplicaReport
from control_plane.routing_key import RoutingKey
from control_plane.routing_policy import LeastLoaded, PrefixPolicy, RoundRobin


def router(*replicas: str, beta: float = 2.0, quiet_tokens: float = 1000) -> FleetRouter:
    fleet = FleetRouter(PrefixPolicy(beta, quiet_tokens, seed=1), PrefixIndex(10_000))
    fleet.set_replicas(replicas)
    return fleet


def key(*names: int, num_tokens: int | None = None) -> RoutingKey:
    return RoutingKey(names, num_tokens or 10 * len(names), 10)


def test_a_conversation_goes_back_to_its_replica() -> None:
    fleet = router("a", "b", "c")
    first = key(1, 2, 3)
    replica = fleet.choose(first)
    fleet.ended(fleet.began(replica, first))
    assert [fleet.choose(key(1, 2, 3, 4, 5)) for _ in range(20)] == [replica] * 20


def test_a_report_counts_once_and_in_its_order() -> None:
    fleet = router("a", "b")
    fleet.observe("a", ReplicaReport(end=3, changes=[1, 2, -1]))
    assert fleet.index.depths([2]) == {"a": 1}
    assert fleet.index.depths([1]) == {}
    fleet.index.remove("a", [2])
    fleet.observe("a", ReplicaReport(end=3, changes=[1, 2, -1]))
    assert fleet.index.depths([2]) == {}
    fleet.observe("a", ReplicaReport(end=4, changes=[2, -1, 1]))
    assert fleet.index.depths([1]) == {"a": 1}
    assert fleet.missed_changes == 0
    fleet.observe("a", ReplicaReport(end=9, changes=[-1, 7]))
    assert fleet.index.depths([7]) == {"a": 1}
    assert fleet.missed_changes == 3


def test_a_replica_that_is_gone_is_forgotten_and_may_still_report_and_end() -> None:
    fleet = router("a", "b")
    trip = fleet.began("a", key(1, 2))
    fleet.set_replicas(["b", "c"])
    fleet.observe("a", ReplicaReport(end=1, changes=[5]))
    fleet.ended(trip)
    assert fleet.index.depths((1, 2)) == {}
    assert fleet.index.depths((5,)) == {}
    assert {fleet.choose(key(1, 2)) for _ in range(50)} == {"b", "c"}


def test_only_those_that_may_be_chosen_are() -> None:
    fleet = router("a", "b", "c")
    fleet.began("a", key(1, 2, 3))
    assert {fleet.choose(key(1, 2, 3), among=["b", "c", "unheard of"]) for _ in range(50)} == {"b", "c"}
    assert fleet.choose(key(1, 2, 3), among=["unheard of"]) == "unheard of"


def test_a_replica_that_falls_behind_loses_even_what_it_has_cached() -> None:
    fleet = router("slow", "b", "c", quiet_tokens=100)
    fleet.observe("slow", ReplicaReport(tokens=2000, end=2, changes=[1, 2]))
    fleet.observe("b", ReplicaReport(tokens=500))
    fleet.observe("c", ReplicaReport(tokens=500))
    assert {fleet.choose(key(1, 2)) for _ in range(50)} == {"b", "c"}


def test_an_idle_fleet_does_not_call_a_single_request_a_load() -> None:
    fleet = router("a", "b", quiet_tokens=1000)
    fleet.began("a", key(1, 2))
    assert fleet.choose(key(1, 2, 3)) == "a"


def test_a_prompt_that_is_not_computed_weighs_more() -> None:
    fleet = router("a")
    fleet.began("a", key(1, 2))
    trip = fleet.began("a", key(1, 2, 3, 4))
    view = fleet.views["a"]
    assert view.load == 60 + UNCOMPUTED_WEIGHT * (20 + 20)
    fleet.answered(trip)
    assert view.load == 60 + UNCOMPUTED_WEIGHT * 20
    fleet.ended(trip)
    assert (view.load, view.num_open) == (20 + UNCOMPUTED_WEIGHT * 20, 1)
    fleet.observe("a", ReplicaReport(tokens=500, waiting_tokens=100))
    assert view.load == 500 + UNCOMPUTED_WEIGHT * 100


def test_reports_travel_as_plain_values() -> None:
    report = ReplicaReport(
        tokens=5, waiting_tokens=4, waiting=1, queue_s=0.5, kv_pressure=0.25, hit_tokens=7, miss_tokens=8, end=2, changes=(2**62, -3)
    )
    stats = report.as_stats()
    assert {type(value) for value in stats.values()} == {int, float, bytes}
    again = ReplicaReport.from_stats(stats)
    assert list(again.changes) == [2**62, -3]
    assert again.as_stats() == stats


def test_the_baselines() -> None:
    loads = {"a": 5, "b": 1, "c": 1}
    turns = RoundRobin()
    assert [turns.choose(loads, {"a": 1.0}) for _ in range(4)] == ["a", "b", "c", "a"]
    least = LeastLoaded(seed=1)
    assert {least.choose(loads, {"a": 1.0}) for _ in range(50)} == {"b", "c"}
