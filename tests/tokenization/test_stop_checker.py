"""Stop strings against a naive search of the whole text, for all ways to cut it into chunks."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_server.tokenization.stop_checker import StopChecker

letters = st.text("abc", max_size=25)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


def naive(text: str, stops: list[str], include_stop: bool) -> tuple[str, bool]:
    for end in range(len(text) + 1):
        if ending := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end if include_stop else end - max(map(len, ending))], True
    return text, False


def held_back(text: str, stops: list[str]) -> int:
    return max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)


@settings(deadline=None)
@given(letters, stop_lists, st.lists(st.integers(0, 4)), st.booleans())
def test_equals_the_naive_search_for_every_chunking(text: str, stops: list[str], sizes: list[int], include_stop: bool) -> None:
    checker = StopChecker(stops, include_stop)
    emitted, stopped, start = "", False, 0
    for size in [*sizes, len(text)]:
        delta, stopped = checker.push(text[start : start + size])
        start += size
        emitted += delta
        if stopped:
            break
        seen = text[:start]
        assert emitted == seen[: len(seen) - held_back(seen, stops)], "exactly the longest possible start is held back"
    assert (emitted + checker.flush(), stopped) == naive(text, stops, include_stop)


def test_text_that_cannot_start_a_stop_passes_at_once() -> None:
    checker = StopChecker(["\nUser:"])
    assert checker.push("Paris.") == ("Paris.", False)
    assert checker.push("\nUs") == ("", False)
    assert checker.push("ers\nUse") == ("\nUsers", False)
    assert checker.push("r: no") == ("", True)
    assert checker.push("more") == ("", True)
    assert checker.flush() == ""


def test_held_text_is_flushed_at_the_end() -> None:
    checker = StopChecker(["END"])
    assert checker.push("the EN") == ("the ", False)
    assert checker.flush() == "EN"


def test_no_stops_hold_nothing_and_empty_ones_are_refused() -> None:
    assert StopChecker([]).push("anything") == ("anything", False)
    with pytest.raises(ValueError, match="empty"):
        StopChecker(["a", ""])


def test_the_cost_is_linear() -> None:
    """The worst case of backtracking searches: 200 kB of almost-matches of a long stop string."""
    checker = StopChecker(["a" * 2000 + "b"])
    start = time.perf_counter()
    for _ in range(2000):
        checker.push("a" * 100)
    assert time.perf_counter() - start < 5
