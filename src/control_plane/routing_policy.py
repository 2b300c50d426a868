"""Which replica a request goes to, from how much of its prompt each has cached and how busy each is. Pure: no clock, no network.

`PrefixPolicy` is the one to use; `RoundRobin` and `LeastLoaded` are what it is measured against.
"""

import random
from collections.abc import Mapping
from typing import Protocol


class RoutingPolicy(Protocol):
    """loads: tokens in flight of every replica, as the router weighs them; at least one replica. cached: the share of the prompt, from 0
    to 1, that a replica has; replicas without any are left out."""

    def choose(self, loads: Mapping[str, float], cached: Mapping[str, float]) -> str: ...


class PrefixPolicy:
    """The highest score: cached share minus `beta` times relative load, which is a replica's load divided by the fleet's mean.

    So a replica that has a prompt cached is preferred for it until it has 1 / `beta` times the mean more to do than the idlest one, and
    a prefix that everybody asks for spreads. Among scores within `margin` of the best, the less busy of two random ones wins
    (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001), so that routers that do not know of each other do not
    all run to one replica.
    """

    def __init__(self, beta: float = 1.0, quiet_tokens: float = 4096, margin: float = 0.02, seed: int | None = None) -> None:
        """quiet_tokens: a lower mean counts as this much, so that a single request does not make a replica of an idle fleet busy."""
        self._beta = beta
        self._quiet_tokens = quiet_tokens
        self._margin = margin
        self._random = random.Random(seed)

    def choose(self, loads: Mapping[str, float], cached: Mapping[str, float]) -> str:
        mean = sum(loads.values()) / len(loads)
        weight = self._beta / max(mean, self._quiet_tokens)
        scores = {replica: -weight * load for replica, load in loads.items()}
        for replica, share in cached.items():
            if replica in scores:
                scores[replica] += share
        enough = max(scores.values()) - self._margin
        best = [replica for replica, score in scores.items() if score >= enough]
        if len(best) == 1:
            return best[0]
        return min(self._random.sample(best, 2), key=loads.__getitem__)


class LeastLoaded:
    """The fewest tokens in flight; among equals, one at random."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def choose(self, loads: Mapping[str, float], cached: Mapping[str, float]) -> str:
        least = min(loads.values())
        return self._random.choice([replica for replica, load in loads.items() if load == least])


class RoundRobin:
    """One after the other, in the order of `loads`."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, loads: Mapping[str, float], cached: Mapping[str, float]) -> str:
        replicas = list(loads)
        self._next += 1
        return replicas[(self._next - 1) % len(replicas)]
