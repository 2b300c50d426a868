"""A scheduler of a few lines for tests of `TorchBackend`, and the tiny models of transformers that it runs."""

from dataclasses import replace
from pathlib import Path

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from inference_server.backends.torch_backend import TorchBackend
from inference_server.core.kv_layout import KVLayout
from inference_server.core.options import ModelOptions
from inference_server.core.plan import BlockCopy, StepPlan
from inference_server.core.request import BlockTable, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling.token_sampler import TokenSampler

BLOCK = 4
SHAPE = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
PATTERN = ["sliding_attention", "sliding_attention", "full_attention"]


MODELS = ("gemma3", "gemma4", "llama", "mistral", "qwen3")


def build(name: str) -> PreTrainedModel:
    torch.manual_seed(1)
    match name:
        case "gemma3":
            return Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, num_hidden_layers=3, layer_types=PATTERN, sliding_window=6))
        case "gemma4":
            config = Gemma4TextConfig(
                **SHAPE,
                num_hidden_layers=6,
                layer_types=PATTERN * 2,
                sliding_window=6,
                global_head_dim=16,
                num_kv_shared_layers=3,
                hidden_size_per_layer_input=8,
                vocab_size_per_layer_input=128,
            )
            return Gemma4ForCausalLM(config)
        case "llama":
            return LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=2))
        case "mistral":
            return MistralForCausalLM(MistralConfig(**SHAPE, num_hidden_layers=2, sliding_window=5))
        case _:
            return Qwen3ForCausalLM(Qwen3Config(**SHAPE, num_hidden_layers=2))


def options(**changes: str) -> ModelOptions:
    return replace(ModelOptions("tiny", None, Path(), device="cpu", dtype="float32"), **changes)


class TorchDriver:
    """A backend with a naive owner of its blocks: ids are shuffled, and every free block but the null one is poisoned with NaN."""

    def __init__(self, folder: Path, num_blocks: int = 64) -> None:
        self.backend = TorchBackend(options(), folder, TokenSampler(16))
        spec = self.backend.load()
        self.layout = KVLayout.from_num_blocks(spec.groups, BLOCK, num_blocks)
        self.backend.allocate(self.layout)
        self.pool = self.backend._kv
        shuffle = torch.Generator().manual_seed(0)
        self.free: list[list[int]] = []
        for g, group in enumerate(spec.groups):
            # Each group gets an equal share of the arena, since the groups are views of the same bytes.
            share = self.layout.num_slabs // len(spec.groups) * self.layout.blocks_per_slab(g)
            reserved = self.layout.blocks_per_slab(g)
            ids = torch.arange(max(reserved, g * share), (g + 1) * share)
            for layer in group.layers:
                self.pool.key(layer)[ids] = torch.nan
                self.pool.value(layer)[ids] = torch.nan
            self.free.append(ids[torch.randperm(len(ids), generator=shuffle)].tolist())
        self.steps = 0

    def request(self, prompt: list[int], **sampling: float) -> ScheduledRequest:
        params = SamplingParams(**{"temperature": 0.0, **sampling})
        tables = [BlockTable() for _ in self.layout.groups]
        return ScheduledRequest(f"r{id(prompt)}", list(prompt), params, 0.0, block_tables=tables)

    def forget(self, request: ScheduledRequest) -> None:
        """Poison the blocks that fell out of the window, and replace them by the null block."""
        for g, group in enumerate(self.layout.groups):
            if group.window is None:
                continue
            for i in range(max(0, request.num_computed_tokens - group.window + 1) // BLOCK):
                block = request.block_tables[g].block_ids[i]
                request.block_tables[g].block_ids[i] = 0
                for layer in group.layers if block else ():
                    self.pool.key(layer)[block] = torch.nan

    def run(self, *work: tuple[ScheduledRequest, int], copies: list[BlockCopy] | None = None) -> list[int]:
        """Run one step. work: (request, new tokens) for each row. Sampled tokens are appended, as by the engine."""
        plan = StepPlan(self.steps, block_copies=copies or [])
        self.steps += 1
        for request, num_new in work:
            start = request.num_computed_tokens
            for g, table in enumerate(request.block_tables):
                while len(table.block_ids) * BLOCK < start + num_new:
                    table.block_ids.append(self.free[g].pop())
            plan.add(request, start, num_new, start + num_new == len(request.token_ids))
        step = self.backend.launch(plan)
        self.backend.sample(step)
        result = self.backend.collect(step)
        assert result.step_id == plan.step_id
        for (request, num_new), token in zip(work, result.token_ids, strict=True):
            request.num_computed_tokens += num_new
            assert (token >= 0) == (request.num_computed_tokens == len(request.token_ids))
            if token >= 0:
                request.token_ids.append(token)
            self.forget(request)
        return result.token_ids

    def decode(self, requests: list[ScheduledRequest], steps: int) -> None:
        for _ in range(steps):
            self.run(*((request, 1) for request in requests))
