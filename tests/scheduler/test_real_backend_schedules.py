"""The scheduler's own driver over real attention: its block tables, prefix cache and preemption, read by a tiny Gemma 3."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from random_schedules import H2O, LRU, SinkLRU, report_masses, run_schedule
from scheduler_driver import Driver
from transformers import AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedModel

from inference_server.backends.paged_backend import PagedBackend
from inference_server.backends.torch_backend import TorchBackend
from inference_server.checkpoints.safetensors_reader import open_checkpoint
from inference_server.core.options import ModelOptions, PrefillMode, SchedulerOptions
from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling.sampler import Sampler
from inference_server.sampling.token_sampler import TokenSampler


@cache
def reference(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


class Straight:
    """What the driver needs beside the seam: poison for blocks, and the tokens of a straight run by transformers."""

    def follow(self, folder: Path) -> "Straight":
        self._reference, self._draw = reference(folder), Sampler()
        return self

    def poison(self, group: int, blocks: Iterable[int]) -> None:
        blocks = list(blocks)
        for layer in self._kv.layout.groups[group].layers:
            self._kv.key(layer)[blocks] = torch.nan
            self._kv.value(layer)[blocks] = torch.nan

    @torch.inference_mode()
    def drawn(self, token_ids: Sequence[int], num_prompt_tokens: int) -> list[int]:
        """The token after the prompt and after each but the last that follows it, drawn as the driver's requests are.

        These are the tokens that follow it only if a straight run generates them; a forward for each of them would say no more.
        """
        positions = range(num_prompt_tokens, len(token_ids))
        if not positions:
            return []
        logits = self._reference(torch.tensor([token_ids[:-1]])).logits[0, num_prompt_tokens - 1 :]
        return self._draw(logits, [SamplingParams()] * len(positions), positions).tolist()


class StraightTorch(Straight, TorchBackend): ...


class StraightPaged(Straight, PagedBackend): ...


def torch_backend(folder: Path) -> Straight:
    options = ModelOptions("tiny", None, folder, device="cpu", dtype="float32")
    return StraightTorch(options, folder, TokenSampler(64)).follow(folder)


def paged_backend(folder: Path) -> Straight:
    options = ModelOptions("tiny", None, folder, device="cpu", dtype="float32", max_batch_size=6)
    return StraightPaged(options, folder, open_checkpoint, TokenSampler(64)).follow(folder)


BACKENDS = pytest.mark.parametrize("create", [torch_backend, paged_backend], ids=["torch", "paged"])


class RealDriver(Driver):
    """Here the groups do share their bytes, so a free block is poisoned only where its slab holds nothing of the other group."""

    def straight_run(self, request: ScheduledRequest) -> list[int]:
        return self.backend.drawn(request.token_ids, request.num_prompt_tokens)

    def check(self) -> None:
        self.scheduler.check_integrity(self.unfinished.values())
        layout, pool = self.pool.layout, self.pool
        slabs = [layout.blocks_per_slab(group) for group in range(len(layout.groups))]
        blocks = [(g, b) for g in range(len(slabs)) for b in range(layout.num_blocks(g))]
        live = {(g, b) for g, b in blocks if pool.ref_count(g, b) or pool.is_kept(g, b)}
        for group, per_slab in enumerate(slabs):
            others = {0} | {block // slabs[other] for other, block in live if other != group}
            self.backend.poison(group, [b for g, b in blocks if g == group and b // per_slab not in others and (g, b) not in live])


def random_driver(create: Callable[[Path], Straight], folder: Path, rng: random.Random) -> Driver:
    """With a prefix cache, on a pool of a few requests. The backends do not overlap."""
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


def save_tiny_model(path: Path) -> Path:
    """Two window layers and a full one, in a folder that exists."""
    torch.manual_seed(2)
    config = Gemma3TextConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        sliding_window=6,
        max_position_embeddings=256,
        eos_token_id=None,
        initializer_range=0.3,
    )
    Gemma3ForCausalLM(config).save_pretrained(path)
    return path


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
