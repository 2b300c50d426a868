"""Every family through the paged backend against transformers in fp32: shuffled blocks, a poisoned arena, prefill in chunks.

Their groups differ in heads and head size, layers without KV read another's, and experts see tokens of several rows at once.
"""

from pathlib import Path

import pytest
import torch
from paged_driver import PagedDriver, reference_with_products_of
from tiny_models import TINY
from transformers import PreTrainedModel

from inference_server.backends import model_loading
from inference_server.kernels.cpu_ops import CpuOps

NEW_TOKENS = 7
LENGTHS = (1, 4, 9, 17, 31)  # around block (4) and window (8) edges
PROMPTS = [torch.randint(0, 512, (length,), generator=torch.Generator().manual_seed(length)).tolist() for length in LENGTHS]


def tiny(name: str, folder: Path) -> PreTrainedModel:
    model = TINY[name]()
    model.get_input_embeddings().weight.data *= 0.02  # else a tied embedding makes every token repeat itself
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", TINY)
def test_alone_batched_chunked_resumed_and_overlapped_give_the_tokens_of_transformers(name: str, tmp_path: Path) -> None:
    model = tiny(name, tmp_path)
    alone = PagedDriver(tmp_path)
    tokens = []
    for prompt in PROMPTS:
        alone.sampler.logits.clear()
        tokens += alone.generate([prompt], NEW_TOKENS)
        with torch.no_grad():
            expected = model(torch.tensor([prompt + tokens[-1][:-1]])).logits[0, len(prompt) - 1 :]
        torch.testing.assert_close(torch.cat(alone.sampler.logits), expected, atol=1e-4, rtol=0)
        assert tokens[-1] == expected.argmax(-1).tolist()
    assert len({token for row in tokens for token in row}) > 2 * len(PROMPTS), "tokens that repeat would hide faults"
    assert alone.generate(PROMPTS, NEW_TOKENS) == tokens
    assert PagedDriver(tmp_path, seed=1).generate(PROMPTS, NEW_TOKENS, chunk=3) == tokens
    resumed = [prompt + known[:3] for prompt, known in zip(PROMPTS, tokens, strict=True)]  # as after a preemption
    again = PagedDriver(tmp_path, seed=2, block_size=16, num_blocks=100).generate(resumed, NEW_TOKENS - 3, chunk=13)
    assert again == [known[3:] for known in tokens]
    assert PagedDriver(tmp_path, seed=3).generate_overlapped(PROMPTS, NEW_TOKENS) == tokens


@pytest.mark.parametrize("name", TINY)
def test_compiled_operations_compute_what_the_reference_does(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny(name, tmp_path)
    compiled = PagedDriver(tmp_path, dtype="bfloat16")
    ops = compiled.backend._model.ops
    if not isinstance(ops, CpuOps):
        pytest.skip("nothing is compiled on this machine")
    monkeypatch.setattr(model_loading, "select_ops", lambda device, dtype: reference_with_products_of(ops))
    plain = PagedDriver(tmp_path, dtype="bfloat16")
    for driver in (compiled, plain):
        driver.generate(PROMPTS, 1, chunk=6)
    ours, expected = torch.cat(compiled.sampler.logits), torch.cat(plain.sampler.logits)
    errors = (ours - expected).abs().amax(-1) / expected.abs().amax(-1)
    assert errors.median() < 1e-2  # a cached value that rounds the other way may move a single row by several times that


@pytest.mark.gpu
@pytest.mark.parametrize("name", TINY)
def test_on_cuda_the_tokens_are_the_same(name: str, tmp_path: Path) -> None:
    tiny(name, tmp_path)
    tokens = PagedDriver(tmp_path).generate(PROMPTS, NEW_TOKENS)
    assert PagedDriver(tmp_path, device="cuda").generate(PROMPTS, NEW_TOKENS, chunk=6) == tokens
