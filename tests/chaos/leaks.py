"""Whether what a server holds at rest, read again and again, grows with the requests that it has had."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

State = Mapping[str, int]  # requests: since its start; tasks, threads, fds; heap: bytes in use of the C heap; rss: bytes of the process

SPARE = {"tasks": 0, "threads": 8, "fds": 4}  # pools of threads grow up to their size
BYTES_A_REQUEST = {"heap": 8_000, "rss": 10_000}


def leaks(states: Sequence[State]) -> dict[str, float]:
    """What grows beyond its limit, and by how much: objects in all, bytes for each request.

    Bytes count only in the second half of the states, since in the first they may be of first uses and of caches that fill.
    """
    settled = states[(len(states) - 1) // 2 :]
    growth = {name: states[-1][name] - states[0][name] - spare for name, spare in SPARE.items()}
    growth |= {name: bytes_a_request(settled, name) - limit for name, limit in BYTES_A_REQUEST.items()}
    return {name: more for name, more in growth.items() if more > 0}


def bytes_a_request(states: Sequence[State], name: str) -> float:
    """The bytes a request that each state adds to the one before it, as the median: a leak is in all of them, a late first use in one."""
    return median((after[name] - before[name]) / (after["requests"] - before["requests"]) for before, after in pairwise(states))
