"""The index against plain sets, and the bound of its size."""

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.prefix_index import PrefixIndex

REPLICAS = ("a", "b", "c")
NAMES = st.lists(st.integers(1, 12), max_size=6)
OPERATIONS = st.lists(st.tuples(st.sampled_from(["add", "remove", "forget"]), st.sampled_from(REPLICAS), NAMES), max_size=30)


@settings(max_examples=150, deadline=None)
@given(operations=OPERATIONS, prompt=st.lists(st.integers(1, 12), max_size=8, unique=True))
def test_it_knows_what_a_set_for_each_replica_would(operations: list[tuple[str, str, list[int]]], prompt: list[int]) -> None:
    index = PrefixIndex(capacity=100)
    known: dict[str, set[int]] = {}
    for operation, replica, names in operations:
        match operation:
            case "add":
                index.add(replica, names)
                known.setdefault(replica, set()).update(names)
            case "remove":
                index.remove(replica, names)
                known.setdefault(replica, set()).difference_update(names)
            case "forget":
                index.forget(replica)
                known.pop(replica, None)
    expected = {}
    for replica, names_of in known.items():
        depth = next((depth for depth, name in enumerate(prompt) if name not in names_of), len(prompt))
        if depth:
            expected[replica] = depth
    assert index.depths(prompt) == expected


def test_many_replicas_come_and_go() -> None:
    index = PrefixIndex(capacity=100)
    index.add("constant", [1, 2, 3])
    for turn in range(500):
        index.add(f"r{turn}", [1, 2, 1000 + turn])
        index.add(f"r{turn - 1}", [3])
        index.forget(f"r{turn - 1}")
        assert index.depths([1, 2, 3]) == {"constant": 3, f"r{turn}": 2}
    assert index.num_bytes() < 25_000


def test_what_was_added_longest_ago_goes_first() -> None:
    index = PrefixIndex(capacity=3)
    index.add("a", [1, 2, 3])
    index.add("b", [1])
    index.add("a", [4])
    assert len(index) == 3
    assert index.depths([1]) == {"a": 1, "b": 1}
    assert index.depths([2]) == {}
    assert index.depths([3, 4]) == {"a": 2}


def test_its_size_is_bounded_whatever_comes() -> None:
    index = PrefixIndex(capacity=1000)
    for start in range(0, 100_000, 500):
        index.add(f"r{start % 7}", range(start + 2**40, start + 2**40 + 500))
    assert len(index) == 1000
    assert index.num_bytes() < 300_000
