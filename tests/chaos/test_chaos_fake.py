"""Chaos on `FakeBackend`: clients of every bad kind at once, steps that fail, a signal at the end. Nothing leaks, hangs or is wrong.

A failure prints the seed, and `--chaos-seed` repeats its choices. The heavy suite storms for one minute here and for two on the embedded
model; `make chaos` storms for ten on each.
"""

import asyncio
import random
from pathlib import Path

import pytest
from leaks import leaks
from lives import CLIENTS, attacked, ended_by_signals, stormy


@pytest.mark.parametrize("seconds", [20.0, pytest.param(60.0, marks=pytest.mark.heavy)])
@pytest.mark.timeout(1500)
def test_a_storm_leaves_nothing_behind(seconds: float, chaos_seconds: float | None, chaos_seed: str, tmp_path: Path) -> None:
    with attacked("fake", chaos_seed, tmp_path) as (target, child):
        states = asyncio.run(stormy(target, chaos_seed, chaos_seconds or seconds, CLIENTS["fake"]))
        asyncio.run(ended_by_signals(target, random.Random(chaos_seed), CLIENTS["fake"], child, number=1))
    assert not leaks(states)
