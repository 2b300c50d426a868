"""Runs sessions against a server: as an open loop, a Poisson process whatever the server does, or as a closed loop of so many clients.

Times of a request count from when it was due. So if the open loop's client is overloaded and sends late, that shows as latency, and is
also reported as lateness. It is not left out, as a loop that waits for answers leaves out the requests that it did not send.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from http_load.client import Answer, LoadClient
from http_load.openai_stream import CHAT, COMPLETIONS
from http_load.workloads import Session, Workload, mean_turns, sessions


@dataclass(frozen=True, slots=True)
class Record:
    """One request of a run, in seconds since its start. status, error, events and the counts of tokens are those of `Answer`."""

    workload: str
    session: int
    turn: int
    due: float
    sent: float
    end: float
    status: int
    error: str | None
    events: tuple[float, ...]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int

    def json(self) -> dict[str, Any]:
        """The record as JSON, rounded to the microsecond."""
        row = asdict(self)
        return {**row, **{key: round(row[key], 6) for key in ("due", "sent", "end")}, "events": [round(t, 6) for t in self.events]}


@dataclass(frozen=True, slots=True)
class Run:
    """The records of a run. begin, end: the window that counts, in seconds of the run; the server warms up before it.

    cpu_s, wall_s: the client's own processor time, and how long it ran.
    """

    records: list[Record]
    begin: float
    end: float
    cpu_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Target:
    """The server to ask. body: fields of every request, such as the model's name and `ignore_eos`."""

    client: LoadClient
    body: dict[str, Any]
    on_record: Callable[[Record], None] = lambda record: None


class _Recorder:
    """Plays sessions and keeps the records of their requests."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._start, self._cpu = time.perf_counter(), time.process_time()
        self.records: list[Record] = []

    def now(self) -> float:
        return time.perf_counter() - self._start

    def run(self, begin: float, end: float) -> Run:
        return Run(self.records, begin, end, time.process_time() - self._cpu, self.now())

    async def play(self, number: int, session: Session, due: float, until: float = float("inf")) -> None:
        """Play all turns, or those before one fails or is due after `until`."""
        messages: list[dict[str, str]] = []
        for i, turn in enumerate(session.turns):
            if i:
                due = self.now() + turn.think_s
            if due >= until:
                return
            await asyncio.sleep(due - self.now())
            body = {**self._target.body, "max_tokens": turn.max_tokens}
            if len(session.turns) == 1:
                answer = await self._target.client.stream(COMPLETIONS, {**body, "prompt": turn.text})
            else:
                messages.append({"role": "user", "content": turn.text})
                answer = await self._target.client.stream(CHAT, {**body, "messages": messages})
                messages.append({"role": "assistant", "content": answer.text})
            self._keep(session, number, i, due, answer)
            if answer.error:
                return

    def _keep(self, session: Session, number: int, turn: int, due: float, answer: Answer) -> None:
        sent, end, events = answer.sent - self._start, answer.end - self._start, tuple(t - self._start for t in answer.events)
        counts = (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens)
        record = Record(session.workload, number, turn, due, sent, end, answer.status, answer.error, events, *counts)
        self.records.append(record)
        self._target.on_record(record)


async def open_loop(target: Target, mix: tuple[Workload, ...], rate: float, warmup_s: float, duration_s: float, seed: str = "0") -> Run:
    """Sessions arrive so that `rate` requests a second are due on average. Those that arrive within the time are played to their end."""
    end, recorder = warmup_s + duration_s, _Recorder(target)
    plays = []
    for number, (due, session) in enumerate(zip(arrivals(rate / mean_turns(mix), end, seed), sessions(mix, seed), strict=False)):
        await asyncio.sleep(due - recorder.now())
        plays.append(asyncio.create_task(recorder.play(number, session, due, end)))
    await asyncio.gather(*plays)
    return recorder.run(warmup_s, end)


async def closed_loop(target: Target, mix: tuple[Workload, ...], clients: int, warmup_s: float, duration_s: float, seed: str = "0") -> Run:
    """`clients` clients, each of which begins a session as soon as its previous one has ended, until the time is up."""
    end, recorder = warmup_s + duration_s, _Recorder(target)
    supply = enumerate(sessions(mix, seed))

    async def client() -> None:
        while (due := recorder.now()) < end:
            number, session = next(supply)
            await recorder.play(number, session, due, end)

    await asyncio.gather(*(client() for _ in range(clients)))
    return recorder.run(warmup_s, end)


def arrivals(rate: float, until: float, seed: str) -> Iterator[float]:
    """Times of a Poisson process before `until`, in seconds."""
    random, due = Random(f"arrivals {seed}"), 0.0
    while (due := due + random.expovariate(rate)) < until:
        yield due
