"""One or two signals at random moments of a storm on `FakeBackend`."""

import asyncio
import random
from pathlib import Path

import pytest
from lives import CLIENTS, attacked, ended_by_signals


@pytest.mark.heavy
@pytest.mark.parametrize("life", range(5))
def test_signals_in_a_storm(life: int, chaos_seed: str, tmp_path: Path) -> None:
    seed = f"{chaos_seed} {life}"
    with attacked("fake", seed, tmp_path) as (target, child):
        asyncio.run(ended_by_signals(target, random.Random(seed), CLIENTS["fake"], child, number=1 + life % 2))
