"""Who asks the simulated fleet: conversations that begin with a shared prompt, drawn by Zipf's law, and repeat all that was said each turn.

A workload has no text, only names: a number for each chunk of a text, the same for equal chunks after equal prefixes.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from control_plane.routing_key import RoutingKey

CHUNK = 64


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """sessions_per_s: sessions that begin in a second. zipf: exponent of the popularity of the `shared_prompts` prompts. hot_share: share
    of sessions that begin with one and the same prompt instead. turns, think_s, said_tokens, answer_tokens: means of exponential draws.
    """

    sessions_per_s: float
    turns: float = 4.0
    think_s: float = 8.0
    shared_prompts: int = 200
    zipf: float = 1.1
    shared_tokens: int = 1024
    said_tokens: float = 200.0
    answer_tokens: float = 150.0
    hot_share: float = 0.0


@dataclass(slots=True)
class Session:
    """One conversation. names: one for each chunk of all that was said so far."""

    turns_left: int
    names: list[int]
    num_tokens: int
    rng: random.Random = field(repr=False)

    def turn(self, shape: WorkloadShape) -> tuple[RoutingKey, list[int], int]:
        """The next request: its key, the names of prompt and answer together, and the tokens of its answer."""
        self.turns_left -= 1
        self.num_tokens += 1 + int(self.rng.expovariate(1 / shape.said_tokens))
        self._fill()
        key = RoutingKey(tuple(self.names), self.num_tokens, CHUNK)
        output = 1 + int(self.rng.expovariate(1 / shape.answer_tokens))
        self.num_tokens += output
        self._fill()
        return key, list(self.names), output

    def think_s(self, shape: WorkloadShape) -> float:
        return self.rng.expovariate(1 / shape.think_s)

    def _fill(self) -> None:
        while (len(self.names) + 1) * CHUNK <= self.num_tokens:
            self.names.append(self.rng.getrandbits(62) + 1)


class Workload:
    """Draws sessions, the same ones for the same seed."""

    def __init__(self, shape: WorkloadShape, seed: int) -> None:
        self.shape = shape
        self._rng = random.Random(seed)
        chunks = shape.shared_tokens // CHUNK
        self._prompts = [[self._rng.getrandbits(62) + 1 for _ in range(chunks)] for _ in range(shape.shared_prompts)]
        self._weights = [1 / rank**shape.zipf for rank in range(1, shape.shared_prompts + 1)]

    def sessions(self) -> Iterator[tuple[float, Session]]:
        """Yield each session and the time at which it begins, without end."""
        shape, rng, time = self.shape, self._rng, 0.0
        while True:
            time += rng.expovariate(shape.sessions_per_s)
            hot = rng.random() < shape.hot_share
            prompt = self._prompts[0] if hot else rng.choices(self._prompts, self._weights)[0]
            turns = 1 + int(rng.expovariate(1 / max(shape.turns - 1, 1e-9)))
            yield time, Session(turns, list(prompt), shape.shared_tokens, random.Random(rng.getrandbits(64)))
