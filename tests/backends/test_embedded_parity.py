"""The embedded Gemma 3 270M in fp32, ours against transformers: greedy tokens and logits, alone and eight at a time.

Transformers reads each finished sequence once. If its argmax after every token is the next token, it would have generated the
same sequence; this check takes one forward instead of sixty-four.
"""

from pathlib import Path

import pytest
import torch
from paged_driver import PagedDriver
from tokenizers import Tokenizer
from torch import Tensor
from transformers import Gemma3ForCausalLM

from inference_server.checkpoints.embedded import prepare_embedded
from inference_server.config import Settings

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]

NEW_TOKENS = 64
ALONE_TOKENS = 24
BATCH = 8
TEXTS = [
    "The capital of France is",
    "User: What is photosynthesis?\nAssistant:",
    "def fibonacci(n):",
    "Once upon a time, in a village by the sea,",
    "1, 1, 2, 3, 5, 8,",
    "Die Hauptstadt von Deutschland",
    "東京は",
    "import numpy as np\n\nx = np.",
    "Water boils at",
    "Dear Sir or Madam,\n\n",
]
FILLER = "The quick brown fox jumps over the lazy dog, and then the dog chases the fox around the old oak tree. "


@pytest.fixture(scope="module")
def folder() -> Path:
    return prepare_embedded(Settings(_env_file=None).cache_dir, progress=False)


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    """Twenty prompts, from a few tokens to more than the window of 512."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = TEXTS + [FILLER * (1 + i * i // 3) + text for i, text in enumerate(TEXTS)]
    return [tokenizer.encode(text).ids for text in texts]


@pytest.fixture(scope="module")
def driver(folder: Path) -> PagedDriver:
    return PagedDriver(folder, block_size=16, num_blocks=600, max_batch_size=BATCH)


@pytest.fixture(scope="module")
def batched(driver: PagedDriver, prompts: list[list[int]]) -> tuple[list[list[int]], list[Tensor]]:
    """The tokens and the logits [NEW_TOKENS, vocab] of every prompt, all run together."""
    tokens: list[list[int]] = []
    logits: list[Tensor] = []
    for first in range(0, len(prompts), BATCH):
        driver.sampler.logits.clear()
        tokens += driver.generate(prompts[first : first + BATCH], NEW_TOKENS)
        logits += torch.stack(driver.sampler.logits, dim=1).unbind()
    return tokens, logits


def test_batched_generation_is_that_of_transformers(
    folder: Path, prompts: list[list[int]], batched: tuple[list[list[int]], list[Tensor]]
) -> None:
    assert len(prompts[-1]) > 512
    reference = Gemma3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for prompt, tokens, logits in zip(prompts, *batched, strict=True):
        with torch.inference_mode():
            expected = reference(torch.tensor([prompt + tokens[:-1]]), logits_to_keep=NEW_TOKENS).logits[0]
        assert expected.argmax(-1).tolist() == tokens
        torch.testing.assert_close(logits, expected, atol=1e-3, rtol=0)


def test_generation_alone_gives_the_same_tokens(
    driver: PagedDriver, prompts: list[list[int]], batched: tuple[list[list[int]], list[Tensor]]
) -> None:
    """Only the first tokens, past the end of a block: a step that reads all weights for one row is the dearest kind."""
    for prompt, tokens in zip(prompts, batched[0], strict=True):
        driver.sampler.logits.clear()
        assert driver.generate([prompt], ALONE_TOKENS) == [tokens[:ALONE_TOKENS]]
