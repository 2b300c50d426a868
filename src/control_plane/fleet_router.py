"""`FleetRouter`: the state behind routing decisions: which replicas there are, what each has cached, and how much each has to do.

Pure: no clock, no network, no Ray. Reports come late, so a request counts as soon as it is sent: its tokens as load until it ends, its
prompt as cached, since it soon will be. With several routers each knows the others' requests from reports alone.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from control_plane.prefix_index import PrefixIndex
from control_plane.replica_report import ReplicaReport
from control_plane.routing_key import RoutingKey
from control_plane.routing_policy import RoutingPolicy

UNCOMPUTED_WEIGHT = 4  # a prompt token still to be computed keeps others waiting, one that is only held hardly does


@dataclass(slots=True, eq=False)
class Trip:
    """A request on its way. uncomputed: tokens of its prompt that its replica probably had not cached; 0 once an answer has begun."""

    replica: str
    key: RoutingKey
    uncomputed: int


@dataclass(slots=True)
class ReplicaView:
    """What the router knows of one replica. sent_tokens, uncomputed_tokens: of its open trips. position: how many changes it has seen."""

    sent_tokens: int = 0
    uncomputed_tokens: int = 0
    num_open: int = 0
    position: int = 0
    report: ReplicaReport = field(default_factory=ReplicaReport)

    @property
    def load(self) -> int:
        """Weighted tokens in flight: the router's own count knows what was just sent, the report what others sent and what came out."""
        uncomputed = max(self.uncomputed_tokens, self.report.waiting_tokens)
        return max(self.sent_tokens, self.report.tokens) + UNCOMPUTED_WEIGHT * uncomputed


class FleetRouter:
    """Not for several threads. missed_changes: how many changes reports left out because a replica's cache changed too fast."""

    def __init__(self, policy: RoutingPolicy, index: PrefixIndex) -> None:
        self.views: dict[str, ReplicaView] = {}
        self.index = index
        self.missed_changes = 0
        self._policy = policy

    def set_replicas(self, replicas: Collection[str]) -> None:
        """Set which replicas there are. What any other had is forgotten."""
        for gone in self.views.keys() - set(replicas):
            del self.views[gone]
            self.index.forget(gone)
        for replica in replicas:
            self.views.setdefault(replica, ReplicaView())

    def observe(self, replica: str, report: ReplicaReport) -> None:
        """Take a report in. A report that came before changes nothing, and neither does that of a replica that is gone."""
        view = self.views.get(replica)
        if view is None:
            return
        view.report = report
        if report.end <= view.position:
            return
        latest = {abs(change): change > 0 for change in report.news(view.position)}
        self.missed_changes += report.end - view.position - min(len(report.changes), report.end - view.position)
        view.position = report.end
        self.index.add(replica, (name for name, came in latest.items() if came))
        self.index.remove(replica, [name for name, came in latest.items() if not came])

    def choose(self, key: RoutingKey, among: Collection[str] | None = None) -> str:
        """The replica that the policy wants for this request. among: those that may be chosen, at least one; None for all.

        A replica that `set_replicas` did not name is chosen only where there is no other.
        """
        views = self.views if among is None else {replica: self.views[replica] for replica in among if replica in self.views}
        loads = {replica: view.load for replica, view in views.items()} or dict.fromkeys(among or (), 0)
        cached = {replica: key.cached_share(depth) for replica, depth in self.index.depths(key.names).items()}
        return self._policy.choose(loads, cached)

    def began(self, replica: str, key: RoutingKey) -> Trip:
        """Book a request that was sent to the replica."""
        depth = self.index.depths(key.names).get(replica, 0)
        trip = Trip(replica, key, key.num_tokens - depth * key.chunk_tokens)
        view = self.views.get(replica)
        if view is not None:
            view.sent_tokens += key.num_tokens
            view.uncomputed_tokens += trip.uncomputed
            view.num_open += 1
            self.index.add(replica, key.names)
        return trip

    def answered(self, trip: Trip) -> None:
        """The first piece of the answer is there, so the prompt has been computed."""
        view = self.views.get(trip.replica)
        if view is not None:
            view.uncomputed_tokens -= trip.uncomputed
        trip.uncomputed = 0

    def ended(self, trip: Trip) -> None:
        """The answer has ended, in whatever way. Once for each trip."""
        self.answered(trip)
        view = self.views.get(trip.replica)
        if view is not None:
            view.sent_tokens -= trip.key.num_tokens
            view.num_open -= 1
