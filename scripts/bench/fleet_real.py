"""`RealFleet`: puts the conversations of a simulated workload to a real fleet over HTTP, in real time, and counts as the simulator does."""

import asyncio
import json
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from statistics import median

import httpx
from fleet_model import StepCost
from fleet_run import Outcome
from fleet_workload import CHUNK, Session, Workload, WorkloadShape

TEXT = range(32, 127)
PROMPT, SAMPLES, UNCOUNTED = 31 * CHUNK, 25, 5
EVENT = re.compile(rb"^data: (\{.*\})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Answer:
    """ttft_s, last_s: seconds from the call to the first piece and to the last; the stream's end is not waited for."""

    ttft_s: float
    last_s: float
    token_ids: list[int]
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Measured:
    """cost: of steps. front_s: in each sample, the seconds that the way to the replica and back added to the first token."""

    cost: StepCost
    front_s: Sequence[float]

    def __str__(self) -> str:
        way = f"{1e3 * median(self.front_s):.1f} ms ({1e3 * min(self.front_s):.1f} to {1e3 * max(self.front_s):.1f})"
        return f"a step {1e3 * self.cost.base_s:.1f} ms, a prompt token {1e6 * self.cost.token_s:.1f} us, the way {way}"


async def measure(http: httpx.AsyncClient) -> Measured:
    """Send one request at a time, each prompt twice.

    The second time, the prompt is cached and takes the same way. So the two differ only by the further steps that the first one took, and
    by what its tokens add to steps. The first pairs do not count, since they open connections and load code.
    """
    rng, num_tokens = random.Random(1), 6
    pairs = []
    for _ in range(UNCOUNTED + SAMPLES):
        ids = rng.choices(TEXT, k=PROMPT)
        pairs.append((await ask(http, ids, num_tokens), await ask(http, ids, num_tokens)))
    del pairs[:UNCOUNTED]
    step_s = median((again.last_s - again.ttft_s) / (num_tokens - 1) for _, again in pairs)
    added_s = median(first.ttft_s - again.ttft_s for first, again in pairs) - (-(-PROMPT // StepCost().chunk) - 1) * step_s
    cached = min(again.cached_tokens for _, again in pairs)
    cost = StepCost(step_s, 0.0, max(0.0, added_s / cached))
    return Measured(cost, [max(0.0, again.ttft_s - cost.seconds(0, PROMPT - cached)) for _, again in pairs])


class RealFleet:
    """Plays one workload and keeps its outcome. Times count from the creation; what ends before `warmup_s` is not counted."""

    def __init__(self, http: httpx.AsyncClient, shape: WorkloadShape, warmup_s: float) -> None:
        self.outcome = Outcome()
        self._http = http
        self._shape = shape
        self._warmup_s = warmup_s
        self._began = time.monotonic()
        self._sessions = count()

    async def run(self, workload: Workload, seconds: float) -> Outcome:
        async with asyncio.TaskGroup() as tasks:
            for start, session in workload.sessions():
                if start > seconds:
                    break
                await asyncio.sleep(self._began + start - time.monotonic())
                tasks.create_task(self._converse(session, seconds))
        return self.outcome

    async def _converse(self, session: Session, seconds: float) -> None:
        """Play the session: its prompt, then texts of its own, with the model's real answers between them."""
        ids = random.Random(session.names[0]).choices(TEXT, k=self._shape.shared_tokens)
        text = random.Random(next(self._sessions))
        while session.turns_left > 0 and time.monotonic() - self._began < seconds:
            key, _, output = session.turn(self._shape)
            ids += text.choices(TEXT, k=key.num_tokens - len(ids))
            answer = await ask(self._http, ids, output)
            if self._warmup_s <= time.monotonic() - self._began <= seconds:
                self._count(answer, len(ids), output)
            ids += answer.token_ids
            await asyncio.sleep(session.think_s(self._shape))

    def _count(self, answer: Answer, num_tokens: int, output: int) -> None:
        out = self.outcome
        out.requests += 1
        out.ttft.append(answer.ttft_s)
        out.hit_tokens += answer.cached_tokens
        out.prompt_tokens += num_tokens
        out.output_tokens += output


async def ask(http: httpx.AsyncClient, ids: list[int], output: int) -> Answer:
    """Request one streamed completion. Raises RuntimeError for an answer that is none."""
    body = {"prompt": ids, "max_tokens": output, "ignore_eos": True, "stream": True, "return_token_ids": True}
    began, first, last, raw = time.monotonic(), 0.0, 0.0, b""
    async with http.stream("POST", "/v1/completions", json=body | {"stream_options": {"include_usage": True}}) as response:
        async for piece in response.aiter_raw():
            last = time.monotonic()
            first = first or last
            raw += piece
    if response.status_code != 200:
        raise RuntimeError(f"{response.status_code}: {raw[:300]!r}")
    events = [json.loads(event) for event in EVENT.findall(raw)]
    tokens = [token for event in events for choice in event["choices"] for token in choice.get("token_ids", ())]
    return Answer(first - began, last - began, tokens, events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"])
