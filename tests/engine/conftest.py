"""Fixtures that the engine's tests share."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=[False, True], ids=["serial", "overlap"])
def overlap(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)
