"""`RealFleet`: the conversations of a simulated workload put to real servers in this process, by the real router, in real time."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from fleet_run import Outcome
from fleet_workload import CHUNK, Session, Workload, WorkloadShape

from control_plane.asgi_call import ForwardedRequest
from control_plane.fleet_router import FleetRouter
from control_plane.prefix_index import PrefixIndex
from control_plane.replica import ReplicaServer
from control_plane.routing_key import RoutingKey
from control_plane.routing_policy import PrefixPolicy
from inference_server.core.chunk_hash import ChunkHasher

SALT = b"salt"
TEXT = range(32, 127)


@dataclass(frozen=True, slots=True)
class Answer:
    """Seconds from the call on."""

    ttft_s: float
    total_s: float
    token_ids: list[int]
    cached_tokens: int


class RealFleet:
    """Servers, a router, and what came of the requests. Times count from `began`."""

    def __init__(self, servers: Sequence[ReplicaServer], shape: WorkloadShape, warmup_s: float) -> None:
        self.outcome = Outcome()
        self._servers = {f"r{index}": server for index, server in enumerate(servers)}
        self._router = FleetRouter(PrefixPolicy(seed=0), PrefixIndex(2**16))
        self._router.set_replicas(self._servers)
        self._hasher = ChunkHasher(SALT, CHUNK)
        self._shape = shape
        self._warmup_s = warmup_s
        self._began = time.monotonic()
        self._sessions = count()

    async def run(self, workload: Workload, seconds: float) -> Outcome:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._report(seconds))
            for start, session in workload.sessions():
                if start > seconds:
                    break
                await asyncio.sleep(self._began + start - time.monotonic())
                tasks.create_task(self._converse(session, seconds))
        return self.outcome

    async def _report(self, seconds: float) -> None:
        while time.monotonic() - self._began < seconds:
            await asyncio.sleep(1.0)
            for name, server in self._servers.items():
                self._router.observe(name, server.report())

    async def _converse(self, session: Session, seconds: float) -> None:
        """The session's prompt, texts of its own, and the model's own answers between them."""
        ids = random.Random(session.names[0]).choices(TEXT, k=self._shape.shared_tokens)
        text = random.Random(next(self._sessions))
        while session.turns_left > 0 and time.monotonic() - self._began < seconds:
            key, _, output = session.turn(self._shape)
            ids += text.choices(TEXT, k=key.num_tokens - len(ids))
            ids += await self._ask(ids, output)
            await asyncio.sleep(session.think_s(self._shape))

    async def _ask(self, ids: list[int], output: int) -> list[int]:
        key = RoutingKey(tuple(self._hasher.chain(ids)), len(ids), CHUNK)
        name = self._router.choose(key)
        trip = self._router.began(name, key)
        answer = await ask(self._servers[name], ids, output, partial(self._router.answered, trip))
        self._router.ended(trip)
        ended_s = time.monotonic() - self._began
        if ended_s >= self._warmup_s:
            out = self.outcome
            out.requests += 1
            out.ttft.append(answer.ttft_s)
            out.hit_tokens += answer.cached_tokens
            out.prompt_tokens += len(ids)
        return answer.token_ids


async def ask(server: ReplicaServer, ids: list[int], output: int, answered: Callable[[], object]) -> Answer:
    """One streamed completion."""
    body = {"prompt": ids, "max_tokens": output, "ignore_eos": True, "stream": True, "return_token_ids": True}
    body |= {"stream_options": {"include_usage": True}}
    headers = ((b"content-type", b"application/json"),)
    began, first, raw = time.monotonic(), 0.0, b""
    async for item in server.call(ForwardedRequest("POST", "/v1/completions", headers=headers, body=json.dumps(body).encode())):
        if isinstance(item, bytes):
            if not first:
                first = time.monotonic()
                answered()
            raw += item
    events = [json.loads(line[6:]) for line in raw.split(b"\n\n") if line.startswith(b"data: {")]
    tokens = [token for event in events for choice in event["choices"] for token in choice.get("token_ids", ())]
    cached = events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    return Answer(first - began, time.monotonic() - began, tokens, cached)
