"""`ray_cluster`: one small Ray for all tests that need a fleet. Each fleet is an application of its own. Without Ray they are skipped."""

from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """Start the Ray. Yields the address of its proxy."""
    pytest.importorskip("ray")
    from fleet_local import cluster

    with cluster((TESTS, TESTS / "api")) as url:
        yield url
