"""Chaos: clients of every bad kind at once, steps that fail, a signal at a random moment. Nothing may leak, hang or answer wrongly.

`make chaos` runs it for ten minutes; a failure prints the seed, and `--chaos-seed` repeats its choices.
"""

import asyncio
import json
import random
import secrets
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import bombs
import pytest
from clients import CHAT, NATIVE, PATIENCE_S, Target, storm
from raw_http import connected, request
from server_process import started, wait_ready

SERVER = Path(__file__).parent / "serve_chaos.py"
SECONDS = {"fake": 8.0, "embedded": 30.0}  # of storm, by default; beside it start, rest and end take some ten more
LIFE_S = 60.0  # after which a long test ends its server by a signal and starts another
CLIENTS = {"fake": 24, "embedded": 10}
FAULTS = {"fake": "0.0005", "embedded": "0.003"}
DRAIN_S = 2
QUESTION = {"text": "What is the capital of France?", "max_tokens": 16}
SPARE_THREADS, SPARE_FDS, SPARE_BYTES = 8, 4, 128 * 2**20
SETTINGS = {
    **{"MAX_BATCH_SIZE": "8", "MAX_QUEUE_SIZE": "24", "KV_CACHE_NUM_BLOCKS": "200", "CHECK_INTEGRITY": "true", "STALL_AFTER_S": "30"},
    **{"ADMISSION_DEADLINE_S": "15", "REQUEST_DEADLINE_S": "30"},
    **{"LOG_FORMAT": "json", "LOG_LEVEL": "warning", "DRAIN_TIMEOUT_S": str(DRAIN_S), "ENABLE_SIMULATOR": "true"},
}


@pytest.mark.parametrize("model", ["fake", pytest.param("embedded", marks=pytest.mark.heavy)])
@pytest.mark.timeout(1500)
def test_chaos(model: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    seconds = request.config.getoption("--chaos-seconds") or SECONDS[model]
    seed = request.config.getoption("--chaos-seed") or secrets.token_hex(4)
    lives = max(1, round(seconds / LIFE_S))
    for life in range(lives):
        folder = tmp_path / str(life)
        folder.mkdir()
        one_life(model, f"{seed} {life}", seconds / lives, folder)


def one_life(model: str, seed: str, seconds: float, folder: Path) -> None:
    """From the start of a server to its end by a signal."""
    settings = {**SETTINGS, "MODEL_NAME": model, "CHAOS_SEED": seed, "CHAOS_FAULTS": FAULTS[model], "TELEMETRY_DIR": str(folder)}
    with started(folder, [str(SERVER)], **settings) as (child, address):
        wait_ready(child, address)
        host, port = address.removeprefix("http://").split(":")
        target = Target((host, int(port)), model == "fake", max_prompt=400, max_tokens=200 if model == "fake" else 24)
        try:
            before, after = asyncio.run(stormy(target, seed, seconds, CLIENTS[model]))
            asyncio.run(ended_by_a_signal(target, seed, CLIENTS[model], child))
        finally:
            print(f"seed {seed!r}, {model}: {dict(sorted(target.counts.items()))}")  # noqa: T201
            print(*target.found[:20], sep="\n")  # noqa: T201
        assert child.returncode == 0
    assert not target.found
    assert not unexpected(folder / "log")
    assert dropped(folder) == 0, "a request has ended twice"
    assert after["tasks"] <= before["tasks"]
    assert after["threads"] <= before["threads"] + SPARE_THREADS
    assert after["fds"] <= before["fds"] + SPARE_FDS
    assert after["rss"] <= before["rss"] + SPARE_BYTES


async def stormy(target: Target, seed: str, seconds: float, num_clients: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the server holds at rest, after a third of the storm and after all of it."""
    if not target.fake:
        await warm_up(target)
    states = []
    for number, share in enumerate((1 / 3, 2 / 3)):
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds * share, stop.set)
        await storm(target, f"{seed} {number}", num_clients, stop)
        states.append(await at_rest(target))
        await answers_properly(target)
    return states[0], states[1]


async def warm_up(target: Target) -> None:
    """Memory that a first use takes and nothing gives back is no leak: all of the cache, and every grammar once."""
    prompts = [target.ask(NATIVE, {"text": f"{number} " + "word " * 380, "max_tokens": 8}) for number in range(10)]
    await asyncio.gather(*prompts)
    for grammar in bombs.GRAMMARS:
        await target.ask(CHAT, {"messages": bombs.USER, "max_tokens": 8, "structured_outputs": grammar()})


async def answers_properly(target: Target) -> None:
    """A few times, since a step may fail."""
    for _ in range(5):
        path, body = ("/v1/completions", {"prompt": list(b"hello"), "max_tokens": 8}) if target.fake else ("/generate", QUESTION)
        answer = await target.ask(path, body)
        if answer is not None and answer.status == 200:
            assert target.fake or "Paris" in answer.json()["text"]
            return
    raise AssertionError("no proper answer after the storm")


async def at_rest(target: Target) -> dict[str, Any]:
    """The server's state once nothing is left of the clients."""
    end = time.monotonic() + 20
    while True:
        state: dict[str, Any] = {}
        for path in ("/chaos/state", "/cache/stats", "/scheduler/stats"):
            state |= await ask_state(target, path)
        if state["open"] == state["used_blocks"] == state["active_rows"] == state["queue_depth"] == 0 and state["tasks"] <= IDLE_TASKS:
            assert state["used_blocks"] + state["cached_blocks"] + state["free_blocks"] == state["total_blocks"]
            return state
        assert time.monotonic() < end, f"something is left: {state}"
        await asyncio.sleep(0.2)


IDLE_TASKS = 6  # lifespan, server, watch, and this request


async def ask_state(target: Target, path: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S), connected(target.address) as wire:
        await wire.send(request(path, method="GET"))
        answer: dict[str, Any] = (await wire.answer()).json()
    return answer


async def ended_by_a_signal(target: Target, seed: str, num_clients: int, child: subprocess.Popen[bytes]) -> None:
    """In the middle of another storm. Whoever was let in still gets a proper end."""
    rng, stop = random.Random(seed), asyncio.Event()
    clients = asyncio.create_task(storm(target, f"{seed} end", num_clients, stop))
    await asyncio.sleep(0.2 + rng.random())
    target.stopping = True
    child.send_signal(rng.choice([signal.SIGTERM, signal.SIGINT]))
    await asyncio.to_thread(child.wait, DRAIN_S + 20)
    stop.set()
    await clients


def unexpected(log: Path) -> list[str]:
    """Lines of the log that tell of a fault which was not injected."""
    lines = log.read_text().splitlines()
    entries = [json.loads(line) if line.startswith("{") else {"level": "error", "message": line} for line in lines]
    faults = [entry for entry in entries if entry["level"] in ("error", "critical") or "exception" in entry]
    return [json.dumps(entry) for entry in faults if "injected" not in entry["message"]][:5]


def dropped(folder: Path) -> int:
    """Rows that the telemetry could not write; a second end of a request would be one."""
    (path,) = folder.glob("*.sqlite3")
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        ((count,),) = connection.execute("SELECT value FROM meta WHERE key = 'dropped_write_failed'").fetchall()
    finally:
        connection.close()
    return int(count)
