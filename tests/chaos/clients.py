"""The clients of the chaos test: what each kind does to the server. All chance comes from the generator that they are given."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import bombs
from checks import problems
from raw_http import Answer, CutOffError, connected, request

CHAT, TEXT, NATIVE, RESPONSES = "/v1/chat/completions", "/v1/completions", "/generate", "/v1/responses"
PATIENCE_S = 60.0  # above every deadline of the server
CLIENT_IDS = ("same-id", "other-id", "x" * 200, "../../etc")


@dataclass
class Target:
    """The server under attack, and the outcome. max_prompt: characters that surely fit. stopping: whether it may refuse connections.
    counts: answers by path and status. found: what was wrong.
    """

    address: tuple[str, int]
    fake: bool
    max_prompt: int
    max_tokens: int
    stopping: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    found: list[str] = field(default_factory=list)

    def judge(self, path: str, body: Any, answer: Answer) -> None:
        self.counts[f"{path} {answer.status}"] += 1
        self.found += (f"{path}: {problem}" for problem in problems(path, body, answer, self.fake))

    async def ask(self, path: str, body: Any, *headers: str, pause_s: float = 0.0, buffer: int | None = None) -> Answer | None:
        """Send a request, read the whole answer and judge it. None if there was no whole answer, which only a stopping server may do."""
        try:
            async with asyncio.timeout(PATIENCE_S), connected(self.address, buffer) as wire:
                await wire.send(request(path, body, *headers))
                answer = await wire.answer(pause_s)
        except TimeoutError:
            self.found.append(f"{path}: no whole answer within {PATIENCE_S:.0f} s to {str(body)[:300]}")
        except (CutOffError, ConnectionError) as error:
            if not self.stopping:
                self.found.append(f"{path}: {error!r} instead of an answer to {str(body)[:300]}")
        else:
            self.judge(path, body, answer)
            return answer
        return None


Client = Callable[[Target, random.Random], Awaitable[None]]


def any_body(target: Target, rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A valid request: its path and body. Prompts share beginnings."""
    path = rng.choice([CHAT, TEXT, TEXT, NATIVE, RESPONSES])
    text = (rng.choice("abcd") * 40 + str(rng.randrange(10**6)) * rng.choice([1, 1, 5, 60]))[: target.max_prompt]
    max_tokens = rng.choice([1, 2, target.max_tokens // 4, target.max_tokens])
    body: dict[str, Any] = {"stream": rng.random() < 0.6}
    if path == RESPONSES:
        return path, body | {"input": text, "max_output_tokens": max_tokens}
    body |= {"max_tokens": max_tokens, "priority": rng.choice([0, 0, 0, -1, 1])}
    if rng.random() < 0.1:
        body["structured_outputs"] = rng.choice([{"choice": ["yes", "no"]}, {"regex": "[a-z]{3,9}"}, {"json": {"type": "object"}}])
    if path == NATIVE:
        return path, body | {"text": text, "session_id": f"session-{rng.randrange(4)}"}
    body |= {"n": rng.choice([1, 1, 1, 2, 5]), "user": f"user-{rng.randrange(4)}"}
    if path == CHAT:
        return path, body | {"messages": [{"role": "user", "content": text}]}
    return path, body | {"prompt": list(text.encode()), "temperature": 0.0}


async def polite(target: Target, rng: random.Random) -> None:
    """Asks, under an id that others use too, and reads the answer."""
    await target.ask(*any_body(target, rng), f"X-Request-Id: {rng.choice(CLIENT_IDS)}")


async def leaver(target: Target, rng: random.Random) -> None:
    """Leaves: before its request is whole, while it waits, after some of the answer, or after all of it without reading."""
    path, body = any_body(target, rng)
    whole = request(path, body)
    stage = rng.choice(["head", "body", "waiting", "waiting", "stream", "stream", "unread"])
    head = whole.index(b"\r\n\r\n")
    cut = {"head": rng.randrange(head), "body": head + 4 + rng.randrange(len(whole) - head - 4)}.get(stage, len(whole))
    async with connected(target.address) as wire:
        await wire.send(whole[:cut])
        if stage == "stream":
            for _ in range(rng.randrange(1, 6)):
                async with asyncio.timeout(PATIENCE_S):
                    await wire.some(rng.choice([1, 100, 1000]))
        else:
            await asyncio.sleep(rng.choice([0, 0.001, 0.01, 0.05, 0.5 if stage == "unread" else 0.1]))
        (wire.reset if rng.random() < 0.5 else wire.close)()


async def crowd(target: Target, rng: random.Random) -> None:
    """Asks for many choices of many prompts, most of which have to wait, and leaves."""
    body = {"prompt": [f"{i} {rng.random()}" for i in range(4)], "n": 3, "max_tokens": target.max_tokens, "stream": rng.random() < 0.5}
    async with connected(target.address) as wire:
        await wire.send(request(TEXT, body))
        await asyncio.sleep(rng.random() * 0.1)
        wire.reset()


async def snail(target: Target, rng: random.Random) -> None:
    """Reads piece by piece through a small buffer, to the end."""
    path, body = any_body(target, rng)
    await target.ask(path, body | {"stream": True}, pause_s=rng.choice([0.001, 0.01]), buffer=16_384)


async def stuck(target: Target, rng: random.Random) -> None:
    """Never reads a long answer, and leaves after a while."""
    async with connected(target.address, buffer=2048) as wire:
        await wire.send(request(TEXT, {"prompt": "a", "max_tokens": target.max_tokens, "n": 8, "stream": True, "return_token_ids": True}))
        await asyncio.sleep(rng.random())


async def babbler(target: Target, rng: random.Random) -> None:
    """Sends what is no HTTP, or HTTP around what is no request, or a request with bytes changed."""
    whole = bytearray(request(*any_body(target, rng)))
    kind = rng.choice(["random", "changed", "cut", "body"])
    if kind == "body":
        await target.ask(rng.choice([CHAT, TEXT, NATIVE, RESPONSES, "/tokenize", "/simulate/start"]), rng.choice(bombs.BODIES))
        return
    if kind == "random":
        whole = bytearray(rng.randbytes(rng.randrange(1, 300)))
    elif kind == "changed":
        for _ in range(rng.randrange(1, 8)):
            whole[rng.randrange(len(whole))] = rng.randrange(256)
    else:
        del whole[rng.randrange(len(whole)) :]
    async with connected(target.address) as wire:
        with suppress(ConnectionError, CutOffError, TimeoutError):
            async with asyncio.timeout(2):
                await wire.send(bytes(whole))
                target.judge("?", None, await wire.answer())


async def glutton(target: Target, rng: random.Random) -> None:
    """Sends more than may be sent: a prompt beyond the context, a body beyond its limit, endless headers."""
    kind = rng.choice(["prompt", "prompt", "body", "headers", "messages"])
    if kind == "prompt":
        await target.ask(NATIVE, {"text": "word " * rng.choice([50_000, 200_000])})
    elif kind == "messages":
        await target.ask(CHAT, {"messages": [{"role": "user", "content": "a"}] * rng.choice([2049, 60_000])})
    else:
        data = b"x" * 5_000_000 if kind == "body" else b"GET / HTTP/1.1\r\nX: " + b"x" * 400_000
        async with connected(target.address) as wire:
            with suppress(ConnectionError):
                await wire.send(request(NATIVE, data) if kind == "body" else data)


async def bomber(target: Target, rng: random.Random) -> None:
    """Asks for an answer to fit a grammar that is made as costly as possible."""
    grammar = rng.choice(bombs.GRAMMARS)()
    await target.ask(CHAT, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 8, "structured_outputs": grammar})


async def hurried(target: Target, rng: random.Random) -> None:
    """Sends several requests in a row on one connection, and leaves or waits for all answers."""
    asked = [any_body(target, rng) for _ in range(3)]
    async with connected(target.address) as wire:
        await wire.send(b"".join(request(path, body) for path, body in asked))
        if rng.random() < 0.5:
            await asyncio.sleep(rng.random() * 0.05)
            wire.reset()
            return
        with suppress(CutOffError):
            for path, body in asked:
                async with asyncio.timeout(PATIENCE_S):
                    target.judge(path, body, await wire.answer())


async def watcher(target: Target, rng: random.Random) -> None:
    """Reads every page and statistic; the server has to be alive and to say so."""
    path = rng.choice(["/health", "/health", "/metrics", "/scheduler/stats", "/cache/stats", "/dashboard/state", "/requests/same-id", "/"])
    async with asyncio.timeout(PATIENCE_S), connected(target.address) as wire:
        await wire.send(request(path, method="GET"))
        answer = await wire.answer()
        target.judge(path, None, answer)
        if answer.status != 200 and not path.startswith("/requests"):
            target.found.append(f"{path}: {answer.status}")


KINDS: dict[Client, int] = {
    polite: 10,
    leaver: 12,
    crowd: 2,
    snail: 3,
    stuck: 1,
    babbler: 6,
    glutton: 1,
    bomber: 2,
    hurried: 2,
    watcher: 4,
}


async def storm(target: Target, seed: str, num_clients: int, stop: asyncio.Event) -> None:
    """Run clients of all kinds, `num_clients` at a time, until `stop` is set."""

    async def client(index: int) -> None:
        rng = random.Random(f"{seed} {index}")
        while not stop.is_set():
            (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
            try:
                await kind(target, rng)
            except Exception as error:
                if target.stopping and isinstance(error, ConnectionError | CutOffError):
                    return
                if isinstance(error, ConnectionError):  # it did not wait for an answer
                    target.counts[f"{kind.__name__}: {type(error).__name__}"] += 1
                else:
                    target.found.append(f"{kind.__name__}: {error!r}")

    async with asyncio.TaskGroup() as group:
        for index in range(num_clients):
            group.create_task(client(index))
