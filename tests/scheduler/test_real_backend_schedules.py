"""The scheduler tests' driver over real attention: a tiny Gemma 3 reads its block tables, under prefix hits and preemption."""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from random_schedules import H2O, LRU, SinkLRU, report_masses, run_schedule
from real_driver import RealDriver, Straight, StraightPaged, StraightTorch, save_tiny_model

from inference_server.checkpoints.safetensors_reader import open_checkpoint
from inference_server.core.options import ModelOptions, PrefillMode, SchedulerOptions
from inference_server.sampling.token_sampler import TokenSampler


def torch_backend(folder: Path) -> Straight:
    options = ModelOptions("tiny", None, folder, device="cpu", dtype="float32")
    return StraightTorch(options, folder, TokenSampler(64)).follow(folder)


def paged_backend(folder: Path) -> Straight:
    options = ModelOptions("tiny", None, folder, device="cpu", dtype="float32", max_batch_size=6)
    return StraightPaged(options, folder, open_checkpoint, TokenSampler(64)).follow(folder)


BACKENDS = pytest.mark.parametrize("create", [torch_backend, paged_backend], ids=["torch", "paged"])


def random_driver(create: Callable[[Path], Straight], folder: Path, rng: random.Random) -> RealDriver:
    """A driver with a prefix cache, on a pool for a few requests. The backends do not overlap."""
    backend = create(folder)
    options = SchedulerOptions(
        max_batch_size=rng.randint(2, 4),
        max_batched_tokens=rng.randint(6, 16),
        prefill_mode=rng.choice(list(PrefillMode)),
        prefill_chunk_size=rng.randint(1, 10),
    )
    policy = rng.choice([LRU, SinkLRU, H2O])()
    groups, block_size, num_slabs = backend.load().groups, rng.choice([1, 2, 4]), rng.randint(16, 24)
    driver = RealDriver(options, groups=groups, block_size=block_size, num_slabs=num_slabs, backend=backend, eviction=policy)
    report_masses(driver, rng.randrange(1000))
    return driver


def run_schedules(create: Callable[[Path], Straight], folder: Path, seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        seen.update(run_schedule(seed, partial(random_driver, create, folder), num_actions=25))
    floors = {"preemptions": len(seeds) // 2, "hits": 5 * len(seeds), "evictions": 20 * len(seeds), "aborts": len(seeds) // 2}
    assert {name: seen[name] for name, floor in floors.items() if seen[name] < floor} == {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("gemma3"))


@BACKENDS
def test_random_schedules_with_the_prefix_cache(create: Callable[[Path], Straight], folder: Path) -> None:
    run_schedules(create, folder, range(3))


@pytest.mark.heavy
@BACKENDS
def test_forty_random_schedules_with_the_prefix_cache(create: Callable[[Path], Straight], folder: Path) -> None:
    run_schedules(create, folder, range(40))


@pytest.mark.parametrize("mode", list(PrefillMode))
@pytest.mark.parametrize("supports_mixed", [False, True])
def test_every_token_is_that_of_a_straight_run(folder: Path, mode: PrefillMode, supports_mixed: bool) -> None:
    backend = torch_backend(folder)
    groups = backend.load().groups
    options = SchedulerOptions(max_batch_size=4, max_batched_tokens=12, prefill_mode=mode, prefill_chunk_size=5)
    driver = RealDriver(options, groups=groups, block_size=2, num_slabs=16, supports_mixed=supports_mixed, backend=backend)
    lengths = [3, 11, 7, 1, 18, 5, 9, 2]
    requests = [driver.add([(7 * i + n) % 61 + 1 for i in range(n)], max_tokens=12) for n in lengths]
    for step in range(400):
        if step == 9:
            driver.abort(requests[2])
        if not driver.unfinished:
            break
        driver.step()
    driver.run()
    assert len(driver.finished) == len(lengths)
    assert sum(request.num_preemptions for request in requests) > 0
