"""A scheduler of a few lines for tests of paged backends: hostile on purpose, where the real one is merely correct.

Block ids are shuffled, the whole arena starts as NaN, and a block that leaves the window is poisoned and handed out again.
"""

import random
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inference_server.backends.paged_backend import PagedBackend
from inference_server.checkpoints.safetensors_reader import open_checkpoint
from inference_server.core.kv_layout import KVLayout
from inference_server.core.options import ModelOptions
from inference_server.core.plan import StepPlan, StepResult
from inference_server.core.request import BlockTable, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling.token_rows import Sampled, SamplingRows, TokenSampling

GREEDY = SamplingParams(temperature=0.0)
LENGTHS = (1, 4, 9, 17, 31)  # around block (4) and window (8) edges
PROMPTS = [torch.randint(0, 512, (length,), generator=torch.Generator().manual_seed(length)).tolist() for length in LENGTHS]


class RecordingSampler:
    """Samples greedily, and keeps what it was given."""

    capturable = None

    def __init__(self) -> None:
        self.logits: list[Tensor] = []
        self.positions: list[Sequence[int]] = []

    def __call__(self, logits: Tensor, rows: SamplingRows) -> Sampled:
        self.logits.append(logits)
        self.positions.append(rows.positions)
        return Sampled(logits.argmax(-1))


def options(max_batch_size: int = 16, dtype: str = "float32", device: str = "cpu", **more: Any) -> ModelOptions:
    return ModelOptions("tiny", None, Path(), device=device, dtype=dtype, max_batch_size=max_batch_size, **more)


class PagedDriver:
    """Runs prompts to their end through launch, sample and collect."""

    def __init__(
        self,
        folder: Path,
        block_size: int = 4,
        num_blocks: int = 200,
        seed: int = 0,
        max_batch_size: int = 16,
        device: str = "cpu",
        dtype: str = "float32",
        token_sampler: TokenSampling | None = None,
        params: SamplingParams = GREEDY,
        **more: Any,
    ) -> None:
        self.sampler = RecordingSampler()
        self.params = params
        chosen = options(max_batch_size, dtype, device, **more)
        self.backend = PagedBackend(chosen, folder, open_checkpoint, token_sampler or self.sampler)
        self.spec = self.backend.load()
        self.layout = KVLayout.from_num_blocks(self.spec.groups, block_size, num_blocks)
        self.backend.allocate(self.layout)
        self.sampler.logits.clear()
        assert self.backend._kv is not None
        self.kv = self.backend._kv
        self.kv.arena.view(self.kv.dtype).fill_(torch.nan)
        slabs = range(1, self.layout.num_slabs)
        share = len(slabs) // len(self.spec.groups)
        self.free = []
        for g in range(len(self.spec.groups)):
            per_slab = self.layout.blocks_per_slab(g)
            ids = [s * per_slab + i for s in slabs[g * share : (g + 1) * share] for i in range(per_slab)]
            random.Random(seed).shuffle(ids)
            self.free.append(ids)
        self.steps = 0

    def request(self, prompt: Sequence[int], slot: int) -> ScheduledRequest:
        tables = [BlockTable() for _ in self.spec.groups]
        return ScheduledRequest(f"r{slot}", list(prompt), self.params, 0.0, slot=slot, block_tables=tables)

    def add(self, plan: StepPlan, request: ScheduledRequest, count: int) -> None:
        """Schedule the next `count` tokens of the request: drop the blocks that left the window, and take those that are missing."""
        start = request.num_computed_tokens
        for g, table in enumerate(request.block_tables):
            window = self.spec.groups[g].window
            for i in range(max(0, start - window + 1) // self.layout.block_size if window else 0):
                if table.block_ids[i]:
                    self.poison(g, table.block_ids[i])
                    self.free[g].insert(0, table.block_ids[i])
                    table.block_ids[i] = 0
            while len(table.block_ids) * self.layout.block_size < start + count:
                table.block_ids.append(self.free[g].pop())
        plan.add(request, start, count, samples=start + count == request.num_tokens)
        request.num_computed_tokens += count

    def poison(self, group: int, block: int) -> None:
        for layer in self.spec.groups[group].layers:
            self.kv.key(layer)[block] = torch.nan
            self.kv.value(layer)[block] = torch.nan

    def run(self, plan: StepPlan) -> StepResult:
        step = self.backend.launch(plan)
        self.backend.sample(step)
        return self.backend.collect(step)

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int, chunk: float = inf) -> list[list[int]]:
        """Greedy tokens of all prompts together, prefilled `chunk` tokens a step beside the decodes."""
        requests = [self.request(prompt, slot) for slot, prompt in enumerate(prompts)]
        while rows := [r for r in requests if r.num_output_tokens < max_tokens]:
            plan = StepPlan(self.steps)
            self.steps += 1
            counts = {id(r): int(min(r.num_tokens - r.num_computed_tokens, chunk)) for r in rows}
            for request in sorted(rows, key=lambda r: counts[id(r)] > 1):
                self.add(plan, request, counts[id(request)])
            for request, token, samples in zip(plan.requests, self.run(plan).token_ids, plan.samples, strict=True):
                assert (token >= 0) == samples
                if samples:
                    request.token_ids.append(token)
        self.release(requests)
        return [request.output_token_ids for request in requests]

    def release(self, requests: Sequence[ScheduledRequest]) -> None:
        for request in requests:
            for g, table in enumerate(request.block_tables):
                for block in filter(None, table.block_ids):
                    self.poison(g, block)
                    self.free[g].insert(0, block)

    def generate_overlapped(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """As `generate`, but each step is launched before the one before it is collected, so that ids come from the device."""
        requests = [self.request(prompt, slot) for slot, prompt in enumerate(prompts)]
        in_flight = None
        for _ in range(max_tokens):
            plan = StepPlan(self.steps)
            for request in requests:
                self.add(plan, request, request.num_tokens - request.num_computed_tokens)
            step = self.backend.launch(plan)
            self.backend.sample(step)
            for request in requests:
                request.num_inflight_tokens += 1
            self._collect(in_flight, requests)
            in_flight = step
        self._collect(in_flight, requests)
        return [request.output_token_ids for request in requests]

    def _collect(self, step: object, requests: Sequence[ScheduledRequest]) -> None:
        if step is not None:
            for request, token in zip(requests, self.backend.collect(step).token_ids, strict=True):
                request.num_inflight_tokens -= 1
                request.token_ids.append(token)
