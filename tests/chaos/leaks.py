"""What a server holds at rest again and again: whether it grows with the requests that it has had."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import median

State = Mapping[str, int]  # requests: since its start; tasks, threads, fds; heap: bytes in use of the C heap; rss: of the process

SPARE = {"tasks": 0, "threads": 8, "fds": 4}  # pools of threads grow to their size
BYTES_A_REQUEST = {"heap": 5_000, "rss": 10_000}


def leaks(states: Sequence[State]) -> dict[str, float]:
    """What has grown, and by how much: objects in all, bytes by request. The first half may still be first uses and caches that fill."""
    settled = states[(len(states) - 1) // 2 :]
    growth = {name: states[-1][name] - states[0][name] - spare for name, spare in SPARE.items()}
    growth |= {name: bytes_a_request(settled, name) - limit for name, limit in BYTES_A_REQUEST.items()}
    return {name: more for name, more in growth.items() if more > 0}


def bytes_a_request(states: Sequence[State], name: str) -> float:
    """The median of the slopes between any two states (Theil and Sen), which one odd state does not move."""
    return median((b[name] - a[name]) / (b["requests"] - a["requests"]) for a, b in combinations(states, 2))
