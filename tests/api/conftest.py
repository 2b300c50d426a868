"""The servers that the tests of the API ask: the echo model in this process and, with -m fleet, three of them behind a fleet's ingress.

A test that takes `url`, `client` or `start` knows no more of the server than its clients do, and runs against both.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import httpx
import openai
import pytest
from api_server import Start, TestServer, running
from echo_model import EchoBackend, load_echo

PROCESS = "one process"
FLEET = pytest.param("fleet", marks=[pytest.mark.fleet, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")])


@pytest.fixture(scope="session")
def echo_server() -> Iterator[TestServer]:
    """A server for the tests that leave it as they found it."""
    with running() as test_server:
        yield test_server


@pytest.fixture(scope="session")
def server(echo_server: TestServer) -> TestServer:
    return echo_server


@pytest.fixture
def sdk(server: TestServer) -> Iterator[openai.OpenAI]:
    """The official client, for the server of the test's module."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as official:
        yield official


@pytest.fixture(scope="session", params=[PROCESS, FLEET])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == PROCESS:
        address = nullcontext(request.getfixturevalue("echo_server").url)
    else:
        from echo_fleet import running_fleet

        address = running_fleet(request.getfixturevalue("ray_cluster"), replicas=3)
    with address as found:
        yield found


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=20, trust_env=False) as http:
        yield http


@pytest.fixture(params=[PROCESS, FLEET])
def start(request: pytest.FixtureRequest) -> Start:
    """Starts a server for one test: entering `start(make_backend, load_model, **settings)` gives its client. A fleet has one replica."""
    if request.param == PROCESS:
        return _one_process
    return partial(_one_replica, request.getfixturevalue("ray_cluster"))


@contextmanager
def _one_process(
    make_backend: Callable[[], EchoBackend] = EchoBackend, load_model: Callable[..., Any] = load_echo, **settings: Any
) -> Iterator[httpx.Client]:
    with running(make_backend(), load_model=load_model, **settings) as server:
        yield server.client


@contextmanager
def _one_replica(proxy: str, *model: Any, **settings: Any) -> Iterator[httpx.Client]:
    from echo_fleet import running_fleet

    with running_fleet(proxy, *model, **settings) as url, httpx.Client(base_url=url, timeout=20, trust_env=False) as client:
        yield client
