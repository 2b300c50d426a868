"""The paged backend against transformers on a tiny Gemma 3 in fp32, over a poisoned arena with shuffled blocks."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from compiled_driver import compiled_and_reference
from paged_driver import PagedDriver, RecordingSampler, options
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from inference_server.backends.paged_backend import PagedBackend
from inference_server.checkpoints.safetensors_reader import open_checkpoint
from inference_server.core.errors import EngineDeadError, ModelLoadError, StepFailedError
from inference_server.core.kv_layout import KVLayout
from inference_server.core.plan import BlockCopy, StepPlan
from inference_server.kernels.cpu.ops import CpuOps
from inference_server.kernels.select_ops import select_ops

NEW_TOKENS = 10
LENGTHS = (1, 4, 5, 8, 9, 17, 31)  # around block (4) and window (8) edges


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    config = Gemma3TextConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=8,
        sliding_window_pattern=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        eos_token_id=None,
    )
    model = Gemma3ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.0, 2.0)
    model.model.embed_tokens.weight.data *= 0.05  # otherwise the tied embedding makes every token repeat itself
    path = tmp_path_factory.mktemp("tiny")
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(0, 512, (length,), generator=generator).tolist() for length in LENGTHS]


@pytest.fixture(scope="module")
def expected(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy tokens of transformers, each prompt alone."""
    model = Gemma3ForCausalLM.from_pretrained(folder).eval()
    out = []
    for prompt in prompts:
        ids = model.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, attention_mask=torch.ones(1, len(prompt)))
        out.append(ids[0, len(prompt) :].tolist())
    assert min(len(set(tokens)) for tokens in out) > NEW_TOKENS // 2, "tokens that repeat would hide faults"
    return out


def test_alone_batched_and_overlapped_give_the_tokens_of_transformers(
    folder: Path, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    driver = PagedDriver(folder)
    assert [driver.generate([prompt], NEW_TOKENS)[0] for prompt in prompts] == expected
    assert PagedDriver(folder, seed=1).generate(prompts, NEW_TOKENS) == expected
    assert PagedDriver(folder, seed=2).generate_overlapped(prompts, NEW_TOKENS) == expected


def test_the_attention_of_cuda_in_the_interpreter(folder: Path, prompts: list[list[int]], expected: list[list[int]]) -> None:
    pytest.importorskip("triton", reason="triton is not installed: its kernels exist on Linux only")
    driver = PagedDriver(folder)
    assert driver.backend._runner is not None
    driver.backend._runner._batch._ops = select_ops(torch.device("cuda"), torch.float32)
    assert driver.generate(prompts[3:6], 3, chunk=6) == [tokens[:3] for tokens in expected[3:6]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda_the_tokens_are_the_same(folder: Path, prompts: list[list[int]], expected: list[list[int]]) -> None:
    driver = PagedDriver(folder, device="cuda")
    assert driver.spec.supports_overlap
    assert driver.generate(prompts, NEW_TOKENS, chunk=6) == expected
    assert PagedDriver(folder, device="cuda", seed=2).generate_overlapped(prompts, NEW_TOKENS) == expected


@pytest.mark.parametrize("chunk", [1, 3, 4, 8, 13])
def test_chunked_prefill_beside_decodes_gives_the_same_tokens(
    folder: Path, prompts: list[list[int]], expected: list[list[int]], chunk: int
) -> None:
    assert PagedDriver(folder, seed=chunk).generate(prompts, NEW_TOKENS, chunk=chunk) == expected


def test_compiled_operations_give_the_same_bits_alone_and_batched(folder: Path, prompts: list[list[int]]) -> None:
    alone, together = PagedDriver(folder, dtype="bfloat16"), PagedDriver(folder, seed=1, dtype="bfloat16")
    if not isinstance(alone.backend._model.ops, CpuOps):
        pytest.skip("nothing is compiled on this machine")
    prompts = [prompt[:1] for prompt in prompts]  # so that all is decoding
    for prompt in prompts:
        alone.generate([prompt], NEW_TOKENS)
    together.generate(prompts, NEW_TOKENS)
    apart = torch.cat(alone.sampler.logits).unflatten(0, (len(prompts), NEW_TOKENS))
    assert torch.equal(torch.stack(together.sampler.logits, dim=1), apart)


def test_compiled_operations_compute_what_the_reference_does(
    folder: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, plain = compiled_and_reference(folder, monkeypatch)
    for driver in (compiled, plain):
        driver.generate(prompts, 1, chunk=6)
    for ours, expected in zip(compiled.sampler.logits, plain.sampler.logits, strict=True):
        torch.testing.assert_close(ours, expected, atol=2e-3 * expected.abs().max().item(), rtol=0)  # the cache may round otherwise


@pytest.mark.parametrize("block_size", [1, 16])
def test_other_block_sizes_give_the_same_tokens(folder: Path, prompts: list[list[int]], expected: list[list[int]], block_size: int) -> None:
    driver = PagedDriver(folder, block_size=block_size, num_blocks=1600 // block_size)
    assert driver.generate(prompts, NEW_TOKENS, chunk=6) == expected


@pytest.mark.parametrize("fault", ["none", "skipped copy", "wrong block"])
def test_a_copied_block_stands_in_for_the_original(folder: Path, prompts: list[list[int]], expected: list[list[int]], fault: str) -> None:
    driver = PagedDriver(folder)
    prompt = prompts[5]
    parent, child = driver.request(prompt, 0), driver.request(prompt, 1)
    plan = StepPlan(0)
    driver.add(plan, parent, len(prompt))
    first = driver.run(plan).token_ids[0]
    copies = []
    for g, table in enumerate(parent.block_tables):
        fresh = driver.free[g].pop()
        child.block_tables[g].block_ids = [*table.block_ids[:-1], fresh]
        copies.append(BlockCopy(g, table.block_ids[-1], fresh))
    if fault == "skipped copy":
        copies.pop()
    if fault == "wrong block":
        child.block_tables[0].block_ids[1] = parent.block_tables[0].block_ids[2]
    plan = StepPlan(1, block_copies=copies)
    child.num_computed_tokens = len(prompt)
    child.token_ids.append(first)
    driver.add(plan, child, 1)
    second = driver.run(plan).token_ids[0]
    while child.num_output_tokens < NEW_TOKENS - 1:
        child.token_ids.append(second)
        plan = StepPlan(2)
        driver.add(plan, child, 1)
        second = driver.run(plan).token_ids[0]
    assert ([*child.output_token_ids, second] == expected[5]) == (fault == "none")


def test_sampling_gets_fp32_logits_of_the_sampling_rows_and_the_positions_of_their_tokens(folder: Path) -> None:
    driver = PagedDriver(folder)
    first, second = driver.request([1, 2, 3], 0), driver.request([4] * 9, 1)
    plan = StepPlan(7)
    driver.add(plan, first, 3)
    driver.add(plan, second, 5)
    result = driver.run(plan)
    assert driver.sampler.positions[-1] == [3]
    assert driver.sampler.logits[-1].shape == (1, 512)
    assert driver.sampler.logits[-1].dtype == torch.float32
    assert result.step_id == 7
    assert result.token_ids[1] == -1


def test_a_step_without_sampling_rows_returns_no_token(folder: Path) -> None:
    driver = PagedDriver(folder)
    plan = StepPlan(0)
    driver.add(plan, driver.request([4] * 9, 3), 5)
    assert driver.run(plan).token_ids == [-1]


def test_dummy_weights_need_no_checkpoint(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    backend = PagedBackend(replace(options(), load_format="dummy"), tmp_path, open_checkpoint, RecordingSampler())
    assert backend.load().num_parameters == PagedDriver(folder).spec.num_parameters


def test_offloading_to_the_memory_that_the_device_uses_anyway_is_said_to_change_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    PagedBackend(replace(options(), ple_offload=True), folder, open_checkpoint, RecordingSampler()).load()
    assert "PLE_OFFLOAD changes nothing on cpu" in caplog.text


def test_an_arena_beyond_all_memory_is_one_line(folder: Path) -> None:
    backend = PagedBackend(options(), folder, open_checkpoint, RecordingSampler())
    layout = KVLayout.from_bytes(backend.load().groups, 16, 2**60)
    with pytest.raises(ModelLoadError, match=r"^a KV arena of [\d.]+ GiB does not fit on cpu$"):
        backend.allocate(layout)


def test_the_spec_says_what_was_loaded(folder: Path) -> None:
    spec = PagedDriver(folder).spec
    assert (spec.architecture, spec.vocab_size, spec.max_model_len, spec.dtype) == ("Gemma3ForCausalLM", 512, 256, "float32")
    assert [group.window for group in spec.groups] == [None, 8]
    assert spec.num_parameters == sum(p.numel() for p in Gemma3ForCausalLM.from_pretrained(folder).parameters())
    assert spec.free_bytes > 0


@pytest.mark.parametrize(
    "failure, becomes",
    [
        (torch.OutOfMemoryError("no room"), StepFailedError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), StepFailedError),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), EngineDeadError),
    ],
)
def test_failures_of_a_step_are_told_apart(
    folder: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, becomes: type[Exception]
) -> None:
    driver = PagedDriver(folder)

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(driver.backend._model.model, "forward", fail)
    plan = StepPlan(0)
    driver.add(plan, driver.request([1], 0), 1)
    with pytest.raises(becomes):
        driver.backend.launch(plan)


@pytest.mark.parametrize("config", ["{", json.dumps({"architectures": ["LlamaForCausalLM"]})])
def test_a_folder_it_cannot_serve_is_refused_in_one_line(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelLoadError) as caught:
        PagedBackend(options(), tmp_path, open_checkpoint, RecordingSampler()).load()
    assert "\n" not in str(caught.value)
