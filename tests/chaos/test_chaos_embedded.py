"""Chaos on the embedded model. It has its own file so that it can run beside the fake model's, if two processes share the tests."""

import asyncio
import random
from pathlib import Path

import pytest
from leaks import leaks
from lives import CLIENTS, attacked, ended_by_signals, stormy


@pytest.mark.heavy
@pytest.mark.timeout(1500)
def test_a_storm_leaves_nothing_behind(chaos_seconds: float | None, chaos_seed: str, tmp_path: Path) -> None:
    with attacked("embedded", chaos_seed, tmp_path) as (target, child):
        states = asyncio.run(stormy(target, chaos_seed, chaos_seconds or 120.0, CLIENTS["embedded"]))
        asyncio.run(ended_by_signals(target, random.Random(chaos_seed), CLIENTS["embedded"], child, number=1))
    assert not leaks(states)
