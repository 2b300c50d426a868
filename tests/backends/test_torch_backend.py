"""`TorchBackend` against transformers' own generation on tiny random models: however the work is cut up, the tokens are the same."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from inference_server.backends.torch_backend import TorchBackend
from inference_server.core.errors import EngineDeadError, ModelLoadError, StepFailedError
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


@pytest.fixture(scope="module", params=["gemma3", "gemma4", "llama", "mistral", "qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    build(request.param).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def reference(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def options(**changes: str) -> ModelOptions:
    return replace(ModelOptions("tiny", None, Path(), device="cpu", dtype="float32"), **changes)


class Rig:
    """A backend with a naive owner of its blocks: shuffled ids, every unowned block but the null one poisoned with NaN."""

    def __init__(self, folder: Path, num_blocks: int = 64) -> None:
        self.backend = TorchBackend(options(), folder, TokenSampler(16))
        spec = self.backend.load()
        self.layout = KVLayout.from_num_blocks(spec.groups, BLOCK, num_blocks)
        self.backend.allocate(self.layout)
        self.pool = self.backend._kv
        shuffle = torch.Generator().manual_seed(0)
        self.free: list[list[int]] = []
        for g, group in enumerate(spec.groups):
            # Half of the arena each: the groups are views of the same bytes.
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
        """Replace what fell out of the window by the null block and poison it."""
        for g, group in enumerate(self.layout.groups):
            if group.window is None:
                continue
            for i in range(max(0, request.num_computed_tokens - group.window + 1) // BLOCK):
                block = request.block_tables[g].block_ids[i]
                request.block_tables[g].block_ids[i] = 0
                for layer in group.layers if block else ():
                    self.pool.key(layer)[block] = torch.nan

    def run(self, *work: tuple[ScheduledRequest, int], copies: list[BlockCopy] | None = None) -> list[int]:
        """One step: (request, new tokens) a row; sampled tokens are appended, as the engine would."""
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


@pytest.fixture(scope="module")
def rig(folder: Path) -> Iterator[Rig]:
    rig = Rig(folder, num_blocks=400)
    yield rig
    rig.backend.close()


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 128, (length,), generator=torch.Generator().manual_seed(seed + length)).tolist()


def generate(model: PreTrainedModel, token_ids: list[int], count: int) -> list[int]:
    inputs = torch.tensor([token_ids])
    output = model.generate(
        inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return output[0].tolist()


@pytest.mark.parametrize("length", [1, 5, 6, 7, 23])
def test_alone_equals_transformers(rig: Rig, reference: PreTrainedModel, length: int) -> None:
    request = rig.request(prompt(length))
    rig.run((request, length))
    rig.decode([request], 15)
    assert request.token_ids == generate(reference, prompt(length), 16)


def test_batched_equals_transformers(rig: Rig, reference: PreTrainedModel) -> None:
    lengths = [1, 3, 8, 17, 30]
    requests = [rig.request(prompt(length)) for length in lengths]
    rig.run(*((request, len(request.token_ids)) for request in requests))
    rig.decode(requests[::-1], 11)
    for request, length in zip(requests, lengths, strict=True):
        assert request.token_ids == generate(reference, prompt(length), 12)


@pytest.mark.parametrize("chunk", [1, 3, 4, 7, 16])
def test_chunked_prefill_equals_straight(rig: Rig, reference: PreTrainedModel, chunk: int) -> None:
    request = rig.request(prompt(21))
    while request.num_computed_tokens < 21:
        rig.run((request, min(chunk, 21 - request.num_computed_tokens)))
    rig.decode([request], 4)
    assert request.token_ids == generate(reference, prompt(21), 5)


def test_mixed_plan_equals_transformers(rig: Rig, reference: PreTrainedModel) -> None:
    first, second, third = (rig.request(prompt(length)) for length in (6, 19, 10))
    rig.run((first, 6))
    rig.run((first, 1), (second, 8))
    rig.run((first, 1), (second, 11), (third, 4))
    rig.run((first, 1), (second, 1), (third, 6))
    for request, length in ((first, 6), (second, 19), (third, 10)):
        assert request.token_ids == generate(reference, prompt(length), len(request.token_ids) - length)


def test_recomputation_after_preemption(rig: Rig, reference: PreTrainedModel) -> None:
    request = rig.request(prompt(9))
    rig.run((request, 9))
    rig.decode([request], 5)
    request.num_computed_tokens = 0
    request.block_tables = [BlockTable() for _ in rig.layout.groups]
    rig.run((request, len(request.token_ids)))
    assert request.token_ids == generate(reference, prompt(9), 7)


def test_a_block_copy_is_a_fork(rig: Rig, reference: PreTrainedModel) -> None:
    """Two requests share whole blocks; the partial last block is copied before the second one writes to it."""
    parent = rig.request(prompt(6))
    rig.run((parent, 6))
    child = rig.request([*prompt(6), 77])
    child.num_computed_tokens = 6
    copies = []
    for g, table in enumerate(parent.block_tables):
        target = rig.free[g].pop()
        child.block_tables[g].block_ids = [table.block_ids[0], target]
        copies.append(BlockCopy(g, table.block_ids[1], target))
    rig.run((parent, 1), (child, 1), copies=copies)
    assert parent.token_ids == generate(reference, prompt(6), 2)
    assert child.token_ids == generate(reference, [*prompt(6), 77], 1)


def test_a_missing_copy_or_a_wrong_block_is_noticed(rig: Rig) -> None:
    request = rig.request(prompt(6))
    rig.run((request, 6))
    request.block_tables[0].block_ids[1] = rig.free[0].pop()
    step = rig.backend.launch(plan_of(request, 6, 1))
    assert step.logits.isnan().any()


def plan_of(request: ScheduledRequest, start: int, num_new: int) -> StepPlan:
    plan = StepPlan(0)
    plan.add(request, start, num_new, True)
    return plan


def test_seeded_draws_do_not_depend_on_the_batch(rig: Rig) -> None:
    alone = rig.request(prompt(7), temperature=1.0, seed=5, top_p=0.9)
    rig.run((alone, 7))
    rig.decode([alone], 6)
    again = rig.request(prompt(7), temperature=1.0, seed=5, top_p=0.9)
    other = rig.request(prompt(12), temperature=0.7, seed=6)
    rig.run((other, 12), (again, 3))
    rig.run((other, 1), (again, 4))
    rig.decode([other, again], 6)
    assert again.token_ids == alone.token_ids


def test_a_step_without_samples(rig: Rig) -> None:
    request = rig.request(prompt(9))
    assert rig.run((request, 5)) == [-1]


def test_spec_tells_the_layout(folder: Path) -> None:
    spec = TorchBackend(options(), folder, TokenSampler(16)).load()
    windows = {
        "Gemma3ForCausalLM": [(None, (2,), 8), (6, (0, 1), 8)],
        "Gemma4ForCausalLM": [(None, (2,), 16), (6, (0, 1), 8)],
        "LlamaForCausalLM": [(None, (0, 1), 8)],
        "MistralForCausalLM": [(5, (0, 1), 8)],
        "Qwen3ForCausalLM": [(None, (0, 1), 8)],
    }
    assert [(group.window, group.layers, group.head_dim) for group in spec.groups] == windows[spec.architecture]
    assert (spec.vocab_size, spec.max_model_len, spec.device, spec.dtype) == (128, 256, "cpu", "float32")
    assert not spec.supports_mixed and spec.free_bytes > 0 and spec.num_parameters > 0


def test_dummy_weights_need_only_the_config(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    assert TorchBackend(options(load_format="dummy"), tmp_path, TokenSampler(16)).load().num_parameters > 0


def test_load_failures_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as missing:
        TorchBackend(options(), tmp_path / "absent", TokenSampler(16)).load()
    build("llama").save_pretrained(tmp_path / "llama")
    with pytest.raises(ModelLoadError, match="float33") as wrong_dtype:
        TorchBackend(options(dtype="float33"), tmp_path / "llama", TokenSampler(16)).load()
    next((tmp_path / "llama").glob("*.safetensors")).write_bytes(b"not weights")
    with pytest.raises(ModelLoadError) as corrupt:
        TorchBackend(options(), tmp_path / "llama", TokenSampler(16)).load()
    mamba = MambaForCausalLM(MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4))
    mamba.save_pretrained(tmp_path / "mamba")
    with pytest.raises(ModelLoadError) as stateful:
        TorchBackend(options(), tmp_path / "mamba", TokenSampler(16)).load()
    for failure in (missing, wrong_dtype, corrupt, stateful):
        assert "\n" not in str(failure.value)


def test_a_broken_plan_costs_only_its_step(rig: Rig, reference: PreTrainedModel) -> None:
    request = rig.request(prompt(4))
    request.block_tables[0].block_ids = [10**9]
    with pytest.raises(StepFailedError):
        rig.backend.launch(plan_of(request, 0, 4))
    test_alone_equals_transformers(rig, reference, 5)


def test_use_before_allocation(folder: Path) -> None:
    backend = TorchBackend(options(), folder, TokenSampler(16))
    with pytest.raises(EngineDeadError):
        backend.launch(StepPlan(0))
