"""Every family through the paged backend against transformers in fp32: shuffled blocks, a poisoned arena, prefill in chunks.

The families differ: groups have different heads and head sizes, layers without KV read another's, experts get tokens of several rows.
"""

from pathlib import Path

import pytest
import torch
from compiled_driver import compiled_and_reference
from paged_driver import PROMPTS, PagedDriver
from tiny_models import TINY, save_tiny

NEW_TOKENS = 7


@pytest.mark.parametrize("name", TINY)
def test_alone_batched_chunked_resumed_and_overlapped_give_the_tokens_of_transformers(name: str, tmp_path: Path) -> None:
    model = save_tiny(name, tmp_path)
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
    save_tiny(name, tmp_path)
    compiled, plain = compiled_and_reference(tmp_path, monkeypatch)
    for driver in (compiled, plain):
        driver.generate(PROMPTS, 1, chunk=6)
    ours, expected = torch.cat(compiled.sampler.logits), torch.cat(plain.sampler.logits)
    errors = (ours - expected).abs().amax(-1) / expected.abs().amax(-1)
    assert errors.median() < 1e-2  # a cached value that rounds the other way may shift a single row by several times that


@pytest.mark.gpu
@pytest.mark.parametrize("name", TINY)
def test_on_cuda_the_tokens_are_the_same(name: str, tmp_path: Path) -> None:
    save_tiny(name, tmp_path)
    tokens = PagedDriver(tmp_path).generate(PROMPTS, NEW_TOKENS)
    assert PagedDriver(tmp_path, device="cuda").generate(PROMPTS, NEW_TOKENS, chunk=6) == tokens
