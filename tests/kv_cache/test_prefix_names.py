"""What a router hears of a prefix cache: after any history, exactly the chunks in the tree, by the names that it works out itself."""

import random

import pytest
from cache_driver import BLOCK, FULL_ONLY, WINDOW_8, Cache, prompt

from inference_server.core.chunk_hash import ChunkHasher
from inference_server.core.kv_layout import LayerGroup
from inference_server.core.prefix_journal import PrefixJournal
from inference_server.kv_cache.prefix_names import PrefixNames
from inference_server.kv_cache.prefix_node import key_parts

HASHER = ChunkHasher(b"salt", chunk_tokens=2 * BLOCK)


def heard(journal: PrefixJournal) -> set[int]:
    """What is cached according to the journal, with all its changes applied in order."""
    cached: set[int] = set()
    for change in journal.latest()[1]:
        (cached.add if change > 0 else cached.remove)(abs(change))
    return cached


@pytest.mark.parametrize("groups", [FULL_ONLY, WINDOW_8])
@pytest.mark.parametrize("seed", range(3))
def test_the_journal_tells_what_is_in_the_tree(groups: tuple[LayerGroup, ...], seed: int) -> None:
    journal, rng = PrefixJournal(HASHER, window=100_000), random.Random(seed)
    cache = Cache(groups, num_slabs=40, names=PrefixNames(journal, BLOCK))
    bases = [prompt(1000 * index, 60) for index in range(4)]
    texts = [
        (base[: rng.randrange(1, 60)] + prompt(rng.randrange(9) * 100, rng.randrange(20)), rng.choice(["", "s"])) for base in bases * 20
    ]
    for token_ids, salt in texts:
        cache.run(token_ids, salt)
        in_tree = [node for node in cache.prefix._nodes() if node.depth % 2 == 0]
        expected = set()
        for node in in_tree:
            parts = [key_parts(above.key, BLOCK) for above in node.path()]
            expected.add(HASHER.chain([token for ids, _ in parts for token in ids], parts[0][1])[-1])
        assert heard(journal) == expected
    assert journal.latest()[0] > 0
    assert any(change < 0 for change in journal.latest()[1])
    cache.clear()
    assert heard(journal) == set()


def test_who_reads_too_rarely_can_tell_what_it_missed() -> None:
    journal = PrefixJournal(HASHER, window=4)
    assert journal.latest() == (0, [])
    for name in range(1, 7):
        journal.added(name)
    journal.removed(6)
    assert journal.latest() == (7, [4, 5, 6, -6])


def test_a_chunk_is_a_whole_number_of_blocks() -> None:
    for block_size in (3, 4 * BLOCK):
        with pytest.raises(ValueError, match="whole number of blocks"):
            PrefixNames(PrefixJournal(HASHER), block_size)
