"""What the chaos test counts as a leak: growth with the requests, but neither growth that comes once nor caches that fill."""

import asyncio
from pathlib import Path

import pytest
from leaks import State, leaks
from lives import CLIENTS, attacked, stormy

MB = 10**6
REQUESTS = (180, 215, 234, 257, 374, 559, 598, 640)


def states(**more: tuple[float, ...]) -> list[State]:
    """States of a server that grows by a kilobyte a request, as records of the latest requests do. more: further growth, by state."""
    found = []
    for index, requests in enumerate(REQUESTS):
        held = {"tasks": 5, "threads": 7, "fds": 19, "heap": 1000 * MB + 1000 * requests, "rss": 1200 * MB + 1000 * requests}
        held |= {name: held[name] + round(sum(added[: index + 1])) for name, added in more.items()}
        found.append({"requests": requests, **held})
    return found


def test_first_uses_and_pieces_that_come_late_are_no_leak() -> None:
    assert leaks(states()) == {}
    assert leaks(states(heap=(0, 20 * MB, 9 * MB), rss=(0, 60 * MB, 30 * MB, 10 * MB, 0, 60 * MB))) == {}
    assert leaks(states(threads=(0, 6, 2), fds=(0, 3))) == {}


def test_growth_with_the_requests_is_a_leak_wherever_it_is() -> None:
    by_request = tuple(20_000.0 * (after - before) for before, after in zip((0, *REQUESTS), REQUESTS, strict=False))
    assert set(leaks(states(heap=by_request, rss=by_request))) == {"heap", "rss"}
    assert set(leaks(states(rss=by_request))) == {"rss"}
    assert set(leaks(states(tasks=(0, 1), threads=(0, 9), fds=(0,) * 7 + (5,)))) == {"tasks", "threads", "fds"}


@pytest.mark.heavy
def test_a_leak_of_20_kb_a_request_is_found(chaos_seed: str, tmp_path: Path) -> None:
    with attacked("fake", chaos_seed, tmp_path, CHAOS_LEAK="20000") as (target, _):
        found = asyncio.run(stormy(target, chaos_seed, 12, CLIENTS["fake"]))
    assert set(leaks(found)) == {"heap", "rss"}
