"""The embedded Gemma 3 270M in int8: as good as in bfloat16, and a decoded token's logits the same bits in any batch."""

import importlib.util
from pathlib import Path

import pytest
import torch
from paged_driver import PagedDriver

from inference_server.checkpoints.embedded import prepare_embedded
from inference_server.config import Settings
from inference_server.kernels.cpu.ops import CpuOps

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench" / "quality.py"
spec = importlib.util.spec_from_file_location("quality", SCRIPT)
assert spec is not None and spec.loader is not None
quality = importlib.util.module_from_spec(spec)
spec.loader.exec_module(quality)


def test_perplexity_is_that_of_bfloat16_within_one_percent() -> None:
    texts = quality.passages(2600, rows=8)
    assert sum(map(len, texts)) > 2000
    bfloat16, int8 = (quality.recite(Settings(_env_file=None, quantization=q, kv_cache_num_blocks=650), texts) for q in ("none", "int8"))
    assert bfloat16.perplexity < 200, "the text means nothing to the model"
    assert int8.perplexity < 1.01 * bfloat16.perplexity
    assert int8.agreement(bfloat16) > 0.88


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_decoded_token_has_the_same_logits_alone_and_in_a_batch(quantization: str) -> None:
    folder = prepare_embedded(Settings(_env_file=None).cache_dir, progress=False)
    driver = PagedDriver(folder, block_size=16, num_blocks=200, dtype="bfloat16", quantization=quantization)
    if not isinstance(driver.backend._model.ops, CpuOps):
        pytest.skip("nothing is compiled on this machine")
    starts = [[2], [651], [818], [1509], [40894], [236776], [5279], [777], [9079]]  # of one token, which is computed as a decoded one is
    tokens = driver.generate(starts, 12)
    together = torch.stack(driver.sampler.logits, dim=1)
    for row in (0, 4, 8):
        driver.sampler.logits.clear()
        assert driver.generate(starts[row : row + 1], 12) == [tokens[row]]
        assert torch.equal(torch.cat(driver.sampler.logits), together[row])
