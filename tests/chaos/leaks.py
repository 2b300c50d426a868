"""What a server holds at rest again and again: whether it grows with the requests that it has had."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

State = Mapping[str, int]  # requests: since its start; tasks, threads, fds; heap: bytes in use of the C heap; rss: of the process

SPARE = {"tasks": 0, "threads": 8, "fds": 4}  # pools of threads grow to their size
BYTES_A_REQUEST = {"heap": 8_000, "rss": 10_000}


def leaks(states: Sequence[State]) -> dict[str, float]:
    """What grows beyond its limit, and by how much: objects in all, bytes a request. Bytes of the first half may be first uses and caches
    that fill."""
    settled = states[(len(states) - 1) // 2 :]
    growth = {name: states[-1][name] - states[0][name] - spare for name, spare in SPARE.items()}
    growth |= {name: bytes_a_request(settled, name) - limit for name, limit in BYTES_A_REQUEST.items()}
    return {name: more for name, more in growth.items() if more > 0}


def bytes_a_request(states: Sequence[State], name: str) -> float:
    """The median of what was added from each state to the next: a leak is in all of them, a piece that came late in one."""
    return median((after[name] - before[name]) / (after["requests"] - before["requests"]) for before, after in pairwise(states))
