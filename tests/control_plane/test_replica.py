"""A replica in this process: its answers, its reports, the effect of a client that leaves, and fleets of three without Ray."""

import asyncio
import json
import pickle
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import fleet_fake
import pytest

from control_plane.asgi_call import ForwardedRequest, Progress, ResponseHead, call_app
from control_plane.fleet_router import FleetRouter
from control_plane.prefix_index import PrefixIndex
from control_plane.prompt_encoder import SCHEMAS, PromptEncoder
from control_plane.replica import ReplicaServer
from control_plane.routing_policy import PrefixPolicy, RoundRobin, RoutingPolicy
from inference_server.api.headers import GENERATION_ROUTES
from inference_server.config import Settings

SALT = b"salt"


@asynccontextmanager
async def replica(step_s: float = 0.0, **settings: Any) -> AsyncIterator[ReplicaServer]:
    server = ReplicaServer(Settings(_env_file=None, **settings), SALT, partial(fleet_fake.load, step_s=step_s))  # type: ignore[call-arg]
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def post(path: str, **body: Any) -> ForwardedRequest:
    return ForwardedRequest("POST", path, headers=((b"content-type", b"application/json"),), body=json.dumps(body).encode())


async def answer(server: ReplicaServer, request: ForwardedRequest) -> tuple[ResponseHead, bytes]:
    head, *pieces = [item async for item in server.call(request)]
    assert isinstance(head, ResponseHead)
    return head, b"".join(piece for piece in pieces if isinstance(piece, bytes))


def test_what_the_router_works_out_is_what_the_replica_reports() -> None:
    """On every route, and for the answer too: only then does the next turn of a conversation find it."""

    async def scenario() -> None:
        async with replica() as server:
            encoder = PromptEncoder(pickle.loads(pickle.dumps(server.prompt_format())), SALT)
            said = "x" * 200
            chat = [{"role": "system", "content": "y" * 100}, {"role": "user", "content": said}]
            for path, body in (
                ("/generate", {"text": said}),
                ("/v1/completions", {"prompt": said + "c", "max_tokens": 4}),
                ("/v1/completions", {"prompt": list(range(150)), "max_tokens": 4, "cache_salt": "tenant"}),
                ("/v1/chat/completions", {"messages": chat, "max_tokens": 4}),
                ("/v1/responses", {"input": said, "instructions": "z" * 70, "max_output_tokens": 4}),
            ):
                request = post(path, **body)
                key = encoder.key(path, request.body)
                assert len(key.names) >= 2
                assert not set(key.names) <= {abs(change) for change in server.report().changes}
                head, _ = await answer(server, request)
                assert head.status == 200
                assert set(key.names) <= set(server.report().changes)
            assert server.report().end == len(server.report().changes)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", b""),
        ("/generate", b'{"text": 1}'),
        ("/generate", b'{"text": "a", "chat_template_kwargs": {"tools": 1}}'),
        ("/x", b""),
    ],
)
def test_a_body_that_is_not_understood_has_a_key_that_says_nothing(path: str, body: bytes) -> None:
    async def scenario() -> None:
        async with replica() as server:
            assert PromptEncoder(server.prompt_format(), SALT).key(path, body).num_tokens == 0

    asyncio.run(scenario())


def test_the_router_reads_the_bodies_of_all_generations() -> None:
    assert SCHEMAS.keys() == GENERATION_ROUTES


def test_a_client_that_leaves_frees_its_rows() -> None:
    async def scenario() -> None:
        async with replica(step_s=0.005) as server:
            pieces = server.call(post("/generate", text="a" * 100, max_tokens=3000, ignore_eos=True, stream=True))
            head = await anext(pieces)
            assert isinstance(head, ResponseHead)
            assert head.is_stream
            await anext(pieces)
            assert server.report().tokens > 100
            assert server.report().kv_pressure > 0
            assert (server.stats()["status"], server.stats()["running"]) == ("ok", 1)
            assert "changes" not in server.stats()
            await pieces.aclose()
            async with asyncio.timeout(5):
                while server.report().tokens:
                    await asyncio.sleep(0.005)

    asyncio.run(scenario())


def test_a_replica_has_no_address_that_a_simulation_could_call() -> None:
    async def scenario() -> None:
        async with replica() as server:
            head, body = await answer(server, post("/simulate/start"))
            assert (head.status, json.loads(body)["error"]["code"]) == (404, "not_found")

    asyncio.run(scenario())


def test_what_an_application_raises_reaches_the_caller() -> None:
    async def broken(scope: object, receive: object, send: object) -> None:
        raise ValueError("broken")

    async def scenario() -> None:
        with pytest.raises(ValueError, match="broken"):
            await anext(call_app(broken, ForwardedRequest("GET", "/")))

    asyncio.run(scenario())


def test_a_request_pickles_without_what_its_router_put_there() -> None:
    request = ForwardedRequest("GET", "/", progress=Progress(lambda: None))
    again = pickle.loads(pickle.dumps(request))
    assert again == request
    assert again.progress.on_answer is None


async def converse(servers: Sequence[ReplicaServer], policy: RoutingPolicy, num_sessions: int = 5, num_turns: int = 4) -> float:
    """Hold conversations that take turns, routed by the real router with reports. Returns the share of prompt tokens that were cached."""
    router = FleetRouter(policy, PrefixIndex(10_000))
    by_name = {f"r{index}": server for index, server in enumerate(servers)}
    router.set_replicas(by_name)
    encoder = PromptEncoder(servers[0].prompt_format(), SALT)
    sessions = [[{"role": "user", "content": f"{index:04}" + "hello " * 25}] for index in range(num_sessions)]
    for _ in range(num_turns):
        for messages in sessions:
            request = post("/v1/chat/completions", messages=messages, max_tokens=16)
            key = encoder.key(request.path, request.body)
            name = router.choose(key)
            trip = router.began(name, key)
            _, body = await answer(by_name[name], request)
            router.ended(trip)
            for replica_name, server in by_name.items():
                router.observe(replica_name, server.report())
            messages.append({"role": "assistant", "content": json.loads(body)["choices"][0]["message"]["content"]})
            messages.append({"role": "user", "content": "and then? " * 8})
    reports = [server.report() for server in servers]
    hits, misses = sum(report.hit_tokens for report in reports), sum(report.miss_tokens for report in reports)
    return hits / (hits + misses)


def test_conversations_keep_what_one_box_would_have_cached() -> None:
    async def share(num_replicas: int, policy: RoutingPolicy) -> float:
        async with AsyncExitStack() as stack:
            return await converse([await stack.enter_async_context(replica()) for _ in range(num_replicas)], policy)

    one, fleet = asyncio.run(share(1, RoundRobin())), asyncio.run(share(3, PrefixPolicy(quiet_tokens=500, seed=1)))
    turns = asyncio.run(share(3, RoundRobin()))
    assert fleet >= 0.9 * one
    assert turns < 0.8 * one
