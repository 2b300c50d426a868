"""The batched sampler draws the same tokens as the CPU's, for any mixture of rows, slots and steps."""

from dataclasses import replace
from random import Random

import pytest
import torch

from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling.sampler import Sampler

pytest.importorskip("triton", reason="triton is not installed: its kernels exist on Linux only")

from inference_server.sampling.device_sampler import DeviceSampler, SamplingVariant

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GREEDY, DRAWN = SamplingParams(temperature=0.0), SamplingParams(temperature=0.8, seed=2**63 - 1)
RESTRICTED = SamplingParams(temperature=1.2, seed=3, top_k=30, top_p=0.9)


def logits_of(rows: int, vocab: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("params", "variant"),
    [
        ([GREEDY, GREEDY], SamplingVariant.GREEDY),
        ([GREEDY, DRAWN, DRAWN], SamplingVariant.DRAWN),
        ([DRAWN, RESTRICTED, GREEDY], SamplingVariant.RESTRICTED),
        ([replace(GREEDY, top_k=5)], SamplingVariant.GREEDY),
        ([replace(DRAWN, top_k=10**6)], SamplingVariant.DRAWN),
        ([replace(DRAWN, min_p=0.2)], SamplingVariant.RESTRICTED),
        ([replace(DRAWN, top_p=1e-12)], SamplingVariant.RESTRICTED),
    ],
)
def test_the_variant_is_that_of_the_most_demanding_row(params: list[SamplingParams], variant: SamplingVariant) -> None:
    sampler = DeviceSampler(4, 5000, DEVICE)
    logits, positions = logits_of(len(params), 5000), list(range(10, 10 + len(params)))
    assert sampler.prepare(params, positions, range(len(params))) is variant
    assert sampler.run(logits.to(DEVICE), variant).tolist() == Sampler()(logits, params, positions).tolist()


def test_slots_change_tenants_and_order_between_steps() -> None:
    random, sampler = Random(1), DeviceSampler(6, 300, DEVICE)
    tenants = [DRAWN] * 6
    for step in range(12):
        tenants[random.randrange(6)] = random.choice([GREEDY, replace(DRAWN, seed=step), replace(DRAWN, temperature=0.1 + step)])
        slots = random.sample(range(6), random.randrange(1, 7))
        params, logits = [tenants[slot] for slot in slots], logits_of(len(slots), 300, step)
        positions = [random.randrange(100) for _ in slots]
        variant = sampler.prepare(params, positions, slots)
        assert sampler.run(logits.to(DEVICE), variant).tolist() == Sampler()(logits, params, positions).tolist()


def test_the_list_of_slots_of_the_step_before_stands_for_its_rows() -> None:
    sampler, rows, slots = DeviceSampler(4, 300, DEVICE), [RESTRICTED, replace(DRAWN, seed=5)], [2, 0]
    for position in (7, 8):
        variant, logits = sampler.prepare(rows, [position, 30 + position], slots), logits_of(2, 300, position)
        assert sampler.run(logits.to(DEVICE), variant).tolist() == Sampler()(logits, rows, [position, 30 + position]).tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("params", [GREEDY, DRAWN, RESTRICTED], ids=["greedy", "drawn", "restricted"])
def test_a_captured_graph_draws_for_every_step(params: SamplingParams) -> None:
    sampler, logits = DeviceSampler(32, 262144, DEVICE), logits_of(32, 262144).to(DEVICE)
    rows = [replace(params, seed=row) for row in range(32)]
    variant = sampler.prepare(rows, [0] * 32, range(32))
    sampler.run(logits, variant)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = sampler.run(logits, variant)
    differing = 0
    for step in range(1, 4):
        other = logits_of(32, 262144, step)
        logits.copy_(other)
        sampler.prepare(rows, [step] * 32, range(32))
        graph.replay()
        differing += int((drawn.cpu() != Sampler()(other, rows, [step] * 32)).sum())
    assert differing <= 1  # the last bit of a logarithm may decide a near tie
