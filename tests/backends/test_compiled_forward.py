"""Forwards whose functions torch.compile has fused, on a GPU: in graphs and outside, their bits are those of the forward without it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from paged_driver import PROMPTS, PagedDriver
from tiny_models import COMMON, gemma3, save_tiny

NEW_TOKENS = 12
FUNCTIONS = {"gemma4-e2b": 2, "gemma3": 1, "qwen3": 0}  # by model, how many functions there are to fuse


@pytest.fixture(autouse=True)
def forgets_what_was_compiled() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def num_compiled() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("sizes", [(), (0,)], ids=["graphs", "eager"])
def test_no_bit_of_the_logits_changes_and_nothing_is_compiled_after_the_start(name: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    if name == "gemma3":
        layers = {"num_key_value_heads": 2, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}
        gemma3(**COMMON, num_hidden_layers=4, **layers).save_pretrained(tmp_path)
    else:
        save_tiny(name, tmp_path)
    options = {"device": "cuda", "dtype": "bfloat16", "cuda_graph_sizes": sizes}
    plain, fused = (PagedDriver(tmp_path, torch_compile=torch_compile, **options) for torch_compile in (False, True))
    assert num_compiled() == 2 * FUNCTIONS[name]
    for chunk in (1000, 6):
        assert fused.generate(PROMPTS, NEW_TOKENS, chunk) == plain.generate(PROMPTS, NEW_TOKENS, chunk)
    assert torch.cat(fused.sampler.logits).equal(torch.cat(plain.sampler.logits))
    assert (fused.backend.graph_hits[0] > 0) == (sizes == ())
    assert num_compiled() == 2 * FUNCTIONS[name]
