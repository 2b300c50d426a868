"""Several choices of one prompt on real attention: each has the tokens of a separate request with the same seed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from real_driver import RealDriver, Straight, StraightPaged, StraightTorch, save_tiny_model

from inference_server.checkpoints.safetensors_reader import open_checkpoint
from inference_server.core.options import ModelOptions, SchedulerOptions
from inference_server.core.request import ScheduledRequest
from inference_server.kv_cache.cache_manager import CacheManager
from inference_server.kv_cache.eviction import LRU
from inference_server.sampling.token_sampler import TokenSampler

NUM_CHOICES = 4
NUM_TOKENS = 10


def torch_backend(folder: Path) -> Straight:
    return StraightTorch(ModelOptions("tiny", None, folder, device="cpu", dtype="float32"), folder, TokenSampler(64))


def paged_backend(folder: Path) -> Straight:
    options = ModelOptions("tiny", None, folder, device="cpu", dtype="float32", max_batch_size=28)
    return StraightPaged(options, folder, open_checkpoint, TokenSampler(64))


class DrawDriver(RealDriver):
    """A driver that does not compare outputs: the tests do that themselves, by seed."""

    def check_output(self, request: ScheduledRequest) -> None:
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("gemma3"))


def make_driver(create: Callable[[Path], Straight], folder: Path, eviction: LRU | None) -> DrawDriver:
    backend = create(folder)
    groups = backend.load().groups
    options = SchedulerOptions(max_batch_size=28, max_batched_tokens=40, prefill_chunk_size=6)
    return DrawDriver(options, groups=groups, block_size=4, num_slabs=100, backend=backend, eviction=eviction)


def prompt_of(length: int) -> list[int]:
    return [(7 * i + length) % 61 + 1 for i in range(length)]


@pytest.mark.parametrize("eviction", [None, LRU()], ids=["uncached", "cached"])
@pytest.mark.parametrize("create", [paged_backend, torch_backend])
def test_choices_draw_as_requests_of_their_own(create: Callable[[Path], Straight], eviction: LRU | None, folder: Path) -> None:
    lengths = [1, 2, 4, 5, 6, 8, 13]
    forked = make_driver(create, folder, eviction)
    groups = [forked.add_group(prompt_of(length), [NUM_TOKENS] * NUM_CHOICES) for length in lengths]
    forked.run()
    alone = make_driver(create, folder, None)
    singles = [[alone.add(prompt_of(length), NUM_TOKENS, seed=seed) for seed in range(NUM_CHOICES)] for length in lengths]
    alone.run()
    outputs = [[request.output_token_ids for request in group] for group in groups]
    assert outputs == [[request.output_token_ids for request in group] for group in singles]
    assert all(len({tuple(tokens) for tokens in group}) == NUM_CHOICES for group in outputs), "equal choices would hide faults"
    assert sum(len(plan.block_copies) for plan in forked.plans) == 2 * 3 * 4  # groups, children, lengths that end within a block


@pytest.mark.parametrize("create", [paged_backend, torch_backend])
def test_a_copy_that_is_skipped_is_a_wrong_token(create: Callable[[Path], Straight], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = CacheManager.take_copies
    monkeypatch.setattr(CacheManager, "take_copies", lambda cache, request: real(cache, request)[:0])
    forked = make_driver(create, folder, None)
    group = forked.add_group(prompt_of(7), [NUM_TOKENS] * 2)
    forked.run()
    alone = make_driver(create, folder, None)
    single = alone.add(prompt_of(7), NUM_TOKENS, seed=1)
    alone.run()
    assert group[1].output_token_ids != single.output_token_ids
