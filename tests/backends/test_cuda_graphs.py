"""Captured steps against eager ones, on a GPU; and, on any machine, which sizes are captured."""

from pathlib import Path

import pytest
import torch
from paged_driver import PagedDriver
from tiny_models import save_tiny

from inference_server.backends.cuda_graph_pool import GraphSizes, fit
from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling.token_sampler import TokenSampler

NEW_TOKENS = 12
MODELS = ("gemma4-e2b", "gemma4-26b-a4b", "qwen3-moe")
PROMPTS = [torch.randint(0, 512, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (1, 4, 9, 17, 31, 70, 2, 5, 100)]


def test_usual_sizes() -> None:
    sizes = GraphSizes.choose(max_rows=256, max_tokens=8192)
    assert sizes.rows == (*range(1, 33), *range(40, 129, 8), *range(144, 257, 16))
    assert (sizes.tokens[0], sizes.tokens[-1]) == (64, 8192)
    assert all(b <= a * 1.5 if a < 256 else b <= a * 1.25 for a, b in zip(sizes.tokens[1:], sizes.tokens[2:], strict=False))
    assert [fit(sizes.rows, n) for n in (1, 33, 41, 129, 256, 257)] == [1, 40, 48, 144, 256, None]


def test_small_and_odd_limits() -> None:
    assert GraphSizes.choose(max_rows=3, max_tokens=40) == GraphSizes((1, 2, 3), (40,))
    assert GraphSizes.choose(max_rows=50, max_tokens=100).rows == (*range(1, 33), 40, 48, 50)


def test_the_operator_chooses_rows_or_nothing() -> None:
    assert GraphSizes.choose(64, 128, rows=(16, 4, 100)) == GraphSizes((4, 16), (64, 128))
    assert GraphSizes.choose(64, 128, rows=(0,)) == GraphSizes((), ())


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    save_tiny(request.param, path)
    return path


@pytest.mark.gpu
def test_captured_steps_give_the_tokens_of_eager_ones_and_of_the_reference(folder: Path) -> None:
    expected = PagedDriver(folder).generate(PROMPTS, NEW_TOKENS)
    eager = PagedDriver(folder, device="cuda", cuda_graph_sizes=(0,))
    assert eager.generate(PROMPTS, NEW_TOKENS) == expected
    assert eager.backend.graph_hits[0] == 0
    for chunk, seed in ((1000, 1), (6, 2), (1, 3)):
        captured = PagedDriver(folder, device="cuda", seed=seed)
        warm_up = captured.backend.graph_hits[1]
        assert captured.generate(PROMPTS, NEW_TOKENS, chunk=chunk) == expected
        replayed, forwards = captured.backend.graph_hits
        assert replayed == forwards - warm_up >= NEW_TOKENS
    assert PagedDriver(folder, device="cuda", seed=4).generate_overlapped(PROMPTS, NEW_TOKENS) == expected


@pytest.mark.gpu
def test_steps_that_few_or_many_rows_sample_from_are_captured_too(folder: Path) -> None:
    """In the first run, 27 rows end their prompts at once; in the one with chunks, prompts end one by one beside rows that decode."""
    prompts = [[n + 1, *prompt] for n in range(3) for prompt in PROMPTS]
    expected = PagedDriver(folder, num_blocks=600, max_batch_size=32).generate(prompts, NEW_TOKENS)
    for chunk in (1000, 30):
        captured = PagedDriver(folder, device="cuda", num_blocks=600, max_batch_size=32)
        warm_up = captured.backend.graph_hits[1]
        assert captured.generate(prompts, NEW_TOKENS, chunk=chunk) == expected
        replayed, forwards = captured.backend.graph_hits
        assert replayed == forwards - warm_up


@pytest.mark.gpu
def test_mass_is_measured_in_captured_steps_too(folder: Path) -> None:
    captured, expected = PagedDriver(folder, device="cuda", block_mass=True), PagedDriver(folder, block_mass=True)
    masses = []
    for driver in (captured, expected):
        mass = driver.backend._block_mass.values
        mass.zero_()
        warm_up = driver.backend.graph_hits[1]
        driver.generate(PROMPTS, NEW_TOKENS)
        masses.append(mass[1:].cpu())  # padding reads the null block
    assert captured.backend.graph_hits[0] >= NEW_TOKENS and expected.backend.graph_hits[0] == 0 < warm_up
    torch.testing.assert_close(*masses, atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
def test_steps_above_the_largest_size_are_eager(folder: Path) -> None:
    expected = PagedDriver(folder).generate(PROMPTS, NEW_TOKENS)
    driver = PagedDriver(folder, device="cuda", cuda_graph_sizes=(1, 4), max_batched_tokens=64)
    assert driver.generate(PROMPTS, NEW_TOKENS) == expected
    assert driver.backend.graph_hits[0] == 0
    assert driver.generate(PROMPTS[:3], NEW_TOKENS) == expected[:3]
    assert driver.backend.graph_hits[0] == NEW_TOKENS


@pytest.mark.gpu
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.9, seed=5),
        SamplingParams(temperature=1.0, seed=6, top_k=20, top_p=0.9),
        SamplingParams(temperature=0.0, presence_penalty=1.5),
        SamplingParams(temperature=0.8, seed=7, min_tokens=4, stop_token_ids=frozenset({7})),
    ],
    ids=["greedy", "drawn", "restricted", "penalised", "long enough"],
)
def test_captured_draws_are_those_of_eager_steps(folder: Path, params: SamplingParams) -> None:
    drivers = [
        PagedDriver(folder, device="cuda", token_sampler=TokenSampler(16), params=params, cuda_graph_sizes=sizes) for sizes in ((), (0,))
    ]
    captured, eager = (driver.generate(PROMPTS, NEW_TOKENS) for driver in drivers)
    assert captured == eager
    assert drivers[0].generate_overlapped(PROMPTS[:4], NEW_TOKENS) == captured[:4]
