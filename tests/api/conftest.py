"""One shared server for the tests that leave it as they found it."""

from collections.abc import Iterator

import httpx
import pytest
from api_server import TestServer, running


@pytest.fixture(scope="session")
def server() -> Iterator[TestServer]:
    with running() as test_server:
        yield test_server


@pytest.fixture
def client(server: TestServer) -> httpx.Client:
    return server.client
