"""Names of prefixes: the same for the same tokens, and different under another salt."""

from inference_server.core.chunk_hash import ChunkHasher

IDS = list(range(100, 140))


def test_a_name_covers_all_tokens_up_to_its_chunk() -> None:
    hasher = ChunkHasher(b"salt", chunk_tokens=16)
    names = hasher.chain(IDS)
    assert len(names) == 2
    assert names == hasher.chain(IDS[:32])
    assert names[0] == hasher.extend(hasher.root(), IDS[:16])
    assert hasher.chain([0, *IDS[1:]])[1] != names[1]
    assert all(0 < name < 2**63 for name in names)


def test_salts_share_nothing() -> None:
    names = ChunkHasher(b"salt", 16).chain(IDS)
    assert set(names).isdisjoint(ChunkHasher(b"other", 16).chain(IDS))
    assert set(names).isdisjoint(ChunkHasher(b"salt", 16).chain(IDS, cache_salt="tenant"))
