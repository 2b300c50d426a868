"""The scheduler tests' driver over real attention: what it needs of a backend, and a tiny Gemma 3."""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import torch
from scheduler_driver import Driver
from tiny_models import gemma3
from transformers import AutoModelForCausalLM, PreTrainedModel

from inference_server.backends.paged_backend import PagedBackend
from inference_server.backends.torch_backend import TorchBackend
from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling.sampler import Sampler


@cache
def reference(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


class Straight:
    """What the driver needs beside the backend's interface: poison for blocks, and the tokens of a straight run by transformers."""

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
        """The token after the prompt, and after each token that follows it but the last, drawn as the driver's requests are.

        They equal the tokens that follow the prompt only if a straight run generates these, so one forward is as good as one a token.
        """
        positions = range(num_prompt_tokens, len(token_ids))
        if not positions:
            return []
        logits = self._reference(torch.tensor([token_ids[:-1]])).logits[0, num_prompt_tokens - 1 :]
        return self._draw(logits, [SamplingParams()] * len(positions), positions).tolist()


class StraightTorch(Straight, TorchBackend): ...


class StraightPaged(Straight, PagedBackend): ...


class RealDriver(Driver):
    """The groups really share their bytes here, so a free block is poisoned only if its slab holds nothing of the other group."""

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


def save_tiny_model(path: Path) -> Path:
    """Save a tiny model of two window layers and a full one in `path`, an existing folder. Returns the folder."""
    layer_types = ["sliding_attention", "sliding_attention", "full_attention"]
    gemma3(vocab_size=64, num_hidden_layers=3, layer_types=layer_types, sliding_window=6).save_pretrained(path)
    return path
