"""The options of the command line for the chaos tests."""

import secrets

import pytest


@pytest.fixture
def chaos_seconds(request: pytest.FixtureRequest) -> float | None:
    seconds: float | None = request.config.getoption("--chaos-seconds")
    return seconds


@pytest.fixture
def chaos_seed(request: pytest.FixtureRequest) -> str:
    seed: str | None = request.config.getoption("--chaos-seed")
    return seed or secrets.token_hex(4)
