"""Chaos on `FakeBackend`: clients of every bad kind at once, steps that fail, signals at random. Nothing may leak, hang or answer wrongly.

A failure prints the seed, and `--chaos-seed` repeats its choices; `make chaos` storms for longer.
"""

import asyncio
import random
from pathlib import Path

import pytest
from leaks import leaks
from lives import CLIENTS, attacked, ended_by_signals, stormy


@pytest.mark.parametrize("seconds", [20.0, pytest.param(180.0, marks=pytest.mark.heavy)])
@pytest.mark.timeout(1500)
def test_a_storm_leaves_nothing_behind(seconds: float, chaos_seconds: float | None, chaos_seed: str, tmp_path: Path) -> None:
    with attacked("fake", chaos_seed, tmp_path) as (target, child):
        states = asyncio.run(stormy(target, chaos_seed, chaos_seconds or seconds, CLIENTS["fake"]))
        asyncio.run(ended_by_signals(target, random.Random(chaos_seed), CLIENTS["fake"], child, number=1))
    assert not leaks(states)


@pytest.mark.heavy
def test_a_leak_of_20_kb_a_request_is_found(chaos_seed: str, tmp_path: Path) -> None:
    with attacked("fake", chaos_seed, tmp_path, CHAOS_LEAK="20000") as (target, _):
        states = asyncio.run(stormy(target, chaos_seed, 12, CLIENTS["fake"]))
    assert set(leaks(states)) == {"heap", "rss"}


@pytest.mark.heavy
@pytest.mark.parametrize("life", range(5))
def test_signals_in_a_storm(life: int, chaos_seed: str, tmp_path: Path) -> None:
    seed = f"{chaos_seed} {life}"
    with attacked("fake", seed, tmp_path) as (target, child):
        asyncio.run(ended_by_signals(target, random.Random(seed), CLIENTS["fake"], child, number=1 + life % 2))
