"""`PrefixRequestRouter`: `FleetRouter` as a request router of Ray Serve. That interface is alpha, so all that depends on it is here.

One lives in each process that holds a handle to the replicas, on an event loop of Serve's.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from control_plane.asgi_call import ForwardedRequest
from control_plane.fleet_router import FleetRouter, Trip
from control_plane.prefix_index import PrefixIndex
from control_plane.replica_report import ReplicaReport
from control_plane.routing_key import RoutingKey
from control_plane.routing_policy import LeastLoaded, PrefixPolicy, RoundRobin, RoutingPolicy


class PrefixRequestRouter(RequestRouter):
    """A request is booked as soon as its replica is chosen, so that those that come at the same time are not all sent there."""

    def initialize_state(self, *, policy: str, beta: float, quiet_tokens: float, index_capacity: int) -> None:
        """policy: "prefix", "least_loaded" or "round_robin". beta, quiet_tokens: see `PrefixPolicy`. index_capacity: see `PrefixIndex`."""
        self._fleet = FleetRouter(_policy(policy, beta, quiet_tokens), PrefixIndex(index_capacity))
        self._trips: dict[str, Trip] = {}  # by Serve's own id of the request

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._fleet.set_replicas([replica.replica_id.unique_id for replica in replicas])
        for replica in replicas:
            if replica.routing_stats:
                self._fleet.observe(replica.replica_id.unique_id, ReplicaReport.from_stats(replica.routing_stats))

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._fleet.set_replicas([replica.unique_id for replica in self.curr_replicas])

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replica that the policy wants, then all others, for the case that it is full."""
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        key = _key(() if pending_request is None else pending_request.args)
        best = self._fleet.choose(key, among=by_id)
        if pending_request is not None:
            self._book(pending_request, best, key)
        return [[by_id.pop(best)], list(by_id.values())]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: object) -> None:
        trip = self._trips.get(pending_request.metadata.internal_request_id)
        if trip is not None and trip.replica != replica_id.unique_id:
            self._book(pending_request, replica_id.unique_id, trip.key)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called too for a replica that refused a request, which by now may be on its way to another."""
        trip = self._trips.get(internal_request_id)
        if trip is not None and trip.replica == replica_id.unique_id:
            self._end(internal_request_id)

    def _book(self, pending: PendingRequest, replica: str, key: RoutingKey) -> None:
        request_id = pending.metadata.internal_request_id
        known = request_id in self._trips
        self._end(request_id)
        trip = self._trips[request_id] = self._fleet.began(replica, key)
        if not known:
            pending.future.add_done_callback(partial(self._end_if_cancelled, request_id))
        if pending.args and isinstance(pending.args[0], ForwardedRequest):
            pending.args[0].progress.on_answer = partial(asyncio.get_running_loop().call_soon_threadsafe, self._fleet.answered, trip)

    def _end_if_cancelled(self, request_id: str, chosen: "asyncio.Future[RunningReplica]") -> None:
        """End the trip of a request whose client left before it was sent anywhere."""
        if chosen.cancelled():
            self._end(request_id)

    def _end(self, request_id: str) -> None:
        trip = self._trips.pop(request_id, None)
        if trip is not None:
            self._fleet.ended(trip)


def _key(args: Sequence[object]) -> RoutingKey:
    """The key of a client's request; one that says nothing for other calls, which may go anywhere."""
    return args[0].key if args and isinstance(args[0], ForwardedRequest) else RoutingKey()


def _policy(name: str, beta: float, quiet_tokens: float) -> RoutingPolicy:
    match name:
        case "prefix":
            return PrefixPolicy(beta, quiet_tokens)
        case "least_loaded":
            return LeastLoaded()
        case "round_robin":
            return RoundRobin()
    raise ValueError(f"there is no routing policy {name!r}")
