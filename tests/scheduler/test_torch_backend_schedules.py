"""The scheduler's own driver over `TorchBackend`: real attention through the scheduler's block tables, preemption included."""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from scheduler_driver import Driver
from transformers import AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig

from inference_server.backends.torch_backend import TorchBackend
from inference_server.core.options import ModelOptions, PrefillMode, SchedulerOptions
from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling.sampler import Sampler
from inference_server.sampling.token_sampler import TokenSampler


class StraightTorchBackend(TorchBackend):
    """What the driver needs beside the seam: poison for blocks, and the tokens of a straight run by transformers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(ModelOptions("tiny", None, folder, device="cpu", dtype="float32"), folder, TokenSampler(16))
        self._reference = AutoModelForCausalLM.from_pretrained(folder).eval()
        self._expected = cache(self._generate)

    def poison(self, group: int, blocks: Iterable[int]) -> None:
        blocks = list(blocks)
        for layer in self._kv.layout.groups[group].layers:
            self._kv.key(layer)[blocks] = torch.nan
            self._kv.value(layer)[blocks] = torch.nan

    def expected_tokens(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        return self._expected(tuple(prompt), num_tokens)

    @torch.inference_mode()
    def _generate(self, prompt: tuple[int, ...], num_tokens: int) -> list[int]:
        """Drawn as the driver's requests are, with the default parameters."""
        token_ids, sampler = list(prompt), Sampler()
        while len(token_ids) < len(prompt) + num_tokens:
            logits = self._reference(torch.tensor([token_ids])).logits[:, -1]
            token_ids += sampler(logits, [SamplingParams()], [len(token_ids)]).tolist()
        return token_ids[len(prompt) :]


class TorchDriver(Driver):
    """Here the groups do share their bytes, so a free block is poisoned only where its slab holds nothing of the other group."""

    def check(self) -> None:
        self.scheduler.check_integrity(self.unfinished.values())
        layout = self.pool.layout
        slabs = [layout.blocks_per_slab(group) for group in range(len(layout.groups))]
        used = {(g, b) for g in range(len(slabs)) for b in range(layout.num_blocks(g)) if self.pool.ref_count(g, b)}
        for group, per_slab in enumerate(slabs):
            kept = {0} | {block // slabs[other] for other, block in used if other != group}
            blocks = range(layout.num_blocks(group))
            self.backend.poison(group, (b for b in blocks if b // per_slab not in kept and (group, b) not in used))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gemma3")
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
        max_position_embeddings=128,
        initializer_range=0.3,
    )
    Gemma3ForCausalLM(config).save_pretrained(path)
    return path


@pytest.mark.parametrize("mode", list(PrefillMode))
@pytest.mark.parametrize("supports_mixed", [False, True])
def test_every_token_is_that_of_a_straight_run(folder: Path, mode: PrefillMode, supports_mixed: bool) -> None:
    backend = StraightTorchBackend(folder)
    groups = backend.load().groups
    options = SchedulerOptions(max_batch_size=4, max_batched_tokens=12, prefill_mode=mode, prefill_chunk_size=5)
    driver = TorchDriver(options, groups=groups, block_size=2, num_slabs=16, supports_mixed=supports_mixed, backend=backend)
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
