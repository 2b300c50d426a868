"""The life of a server under attack: storms of clients, what it holds at rest after each, and its end by signals during a storm."""

import asyncio
import json
import random
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bombs
from clients import CHAT, NATIVE, PATIENCE_S, Target, storm
from leaks import State
from raw_http import connected, request
from server_process import started, wait_ready

SERVER = Path(__file__).parent / "serve_chaos.py"
CLIENTS = {"fake": 24, "embedded": 10}
FAULTS = {"fake": "0.0005", "embedded": "0.003"}
DRAIN_S = 2
IDLE_TASKS = 6  # lifespan, server, watch, and the request that asks
QUESTION = {"text": "What is the capital of France?", "max_tokens": 16}
SETTINGS = {
    **{"MAX_BATCH_SIZE": "8", "MAX_BATCHED_TOKENS": "256", "MAX_QUEUE_SIZE": "24", "KV_CACHE_NUM_BLOCKS": "200", "CHECK_INTEGRITY": "true"},
    **{"STALL_AFTER_S": "30", "ADMISSION_DEADLINE_S": "15", "REQUEST_DEADLINE_S": "30"},
    **{"LOG_FORMAT": "json", "LOG_LEVEL": "warning", "DRAIN_TIMEOUT_S": str(DRAIN_S), "ENABLE_SIMULATOR": "true"},
    # All memory comes from the C heap, whose bytes in use are counted exactly; large pieces go back to the system when they are freed.
    **{"PYTHONMALLOC": "malloc", "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "2"},
}


@contextmanager
def attacked(model: str, seed: str, folder: Path, **settings: str) -> Iterator[tuple[Target, subprocess.Popen[bytes]]]:
    """Run a server. Yields it and its process. At the end, whatever is wrong with its answers, log or telemetry fails the test."""
    faults = {"MODEL_NAME": model, "CHAOS_SEED": seed, "CHAOS_FAULTS": FAULTS[model], "TELEMETRY_DIR": str(folder)}
    with started(folder, [str(SERVER)], **SETTINGS, **faults, **settings) as (child, address):
        wait_ready(child, address)
        host, port = address.removeprefix("http://").split(":")
        target = Target((host, int(port)), model == "fake", max_prompt=400, max_tokens=200 if model == "fake" else 24)
        try:
            yield target, child
        finally:
            print(f"seed {seed!r}, {model}: {dict(sorted(target.counts.items()))}")  # noqa: T201
            print(*target.found[:20], sep="\n")  # noqa: T201
    assert not target.found
    assert not unexpected(folder / "log")
    assert dropped(folder) == 0, "a request has ended twice"


async def stormy(target: Target, seed: str, seconds: float, num_clients: int) -> list[State]:
    """Let clients storm. Returns what the server holds at rest after each of six or more equal parts of the storm."""
    await warm_up(target)
    states, rounds = [], max(6, round(seconds / 30))
    for number in range(rounds):
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds / rounds, stop.set)
        await storm(target, f"{seed} {number}", num_clients, stop)
        states.append(await at_rest(target))
        print(states[-1])  # noqa: T201
    await answers_properly(target)
    return states


async def warm_up(target: Target) -> None:
    """Use the whole cache, and every grammar once. Memory that a first use takes and nothing gives back is no leak."""
    prompts = [target.ask(NATIVE, {"text": f"{number} " + "word " * 380, "max_tokens": 8}) for number in range(10)]
    await asyncio.gather(*prompts)
    for grammar in bombs.GRAMMARS:
        await target.ask(CHAT, {"messages": bombs.USER, "max_tokens": 8, "structured_outputs": grammar()})


async def answers_properly(target: Target) -> None:
    """Assert that the server answers properly. It tries a few times, since a step may fail."""
    for _ in range(5):
        path, body = ("/v1/completions", {"prompt": list(b"hello"), "max_tokens": 8}) if target.fake else ("/generate", QUESTION)
        answer = await target.ask(path, body)
        if answer is not None and answer.status == 200:
            assert target.fake or "Paris" in answer.json()["text"]
            return
    raise AssertionError("no proper answer after the storm")


async def at_rest(target: Target) -> State:
    """Wait until nothing is left of the clients. Returns the server's state then."""
    end = time.monotonic() + 20
    while True:
        held = await ask_state(target, "/chaos/state")
        books = await ask_state(target, "/cache/stats") | await ask_state(target, "/scheduler/stats")
        if held["open"] == books["used_blocks"] == books["active_rows"] == books["queue_depth"] == 0 and held["tasks"] <= IDLE_TASKS:
            assert books["used_blocks"] + books["cached_blocks"] + books["free_blocks"] == books["total_blocks"]
            return held
        assert time.monotonic() < end, f"something is left: {held}, {books}"
        await asyncio.sleep(0.2)


async def ask_state(target: Target, path: str) -> dict[str, int]:
    async with asyncio.timeout(PATIENCE_S), connected(target.address) as wire:
        await wire.send(request(path, method="GET"))
        answer: dict[str, int] = (await wire.answer()).json()
    return answer


async def ended_by_signals(target: Target, rng: random.Random, num_clients: int, child: subprocess.Popen[bytes], number: int) -> None:
    """Send one signal or two at random moments of a storm. Whoever was let in still gets a proper end, and the exit code is right."""
    stop = asyncio.Event()
    clients = asyncio.create_task(storm(target, f"{rng.random()}", num_clients, stop))
    await asyncio.sleep(0.2 + rng.random())
    target.stopping = True
    sent = [rng.choice([signal.SIGTERM, signal.SIGINT]) for _ in range(number)]
    for signum in sent:
        child.send_signal(signum)
        await asyncio.sleep(rng.random() * DRAIN_S / 2)
    await asyncio.to_thread(child.wait, DRAIN_S + 20)
    stop.set()
    await clients
    assert child.returncode in ((0,) if number == 1 else (0, 128 + sent[-1])), sent  # 0: the storm had let it drain before the second


def unexpected(log: Path) -> list[str]:
    """Lines of the log about faults that were not injected."""
    lines = log.read_text().splitlines()
    entries = [json.loads(line) if line.startswith("{") else {"level": "error", "message": line} for line in lines]
    faults = [entry for entry in entries if entry["level"] in ("error", "critical") or "exception" in entry]
    return [json.dumps(entry) for entry in faults if "injected" not in entry["message"]][:5]


def dropped(folder: Path) -> int:
    """How many rows the telemetry could not write. If a request ended twice, its second row would be one of them."""
    (path,) = folder.glob("*.sqlite3")
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        ((count,),) = connection.execute("SELECT value FROM meta WHERE key = 'dropped_write_failed'").fetchall()
    finally:
        connection.close()
    return int(count)
