"""`TorchBackend` against transformers' own generation on tiny random models: the tokens are the same, however the work is cut up."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch_driver import MODELS, TorchDriver, build
from transformers import AutoModelForCausalLM, PreTrainedModel

from inference_server.core.errors import StepFailedError
from inference_server.core.plan import BlockCopy, StepPlan
from inference_server.core.request import BlockTable, ScheduledRequest


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    build(request.param).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def reference(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def driver(folder: Path) -> Iterator[TorchDriver]:
    driver = TorchDriver(folder, num_blocks=400)
    yield driver
    driver.backend.close()


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 128, (length,), generator=torch.Generator().manual_seed(seed + length)).tolist()


def generate(model: PreTrainedModel, token_ids: list[int], count: int) -> list[int]:
    inputs = torch.tensor([token_ids])
    output = model.generate(
        inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return output[0].tolist()


@pytest.mark.parametrize("length", [1, 5, 6, 7, 23])
def test_alone_equals_transformers(driver: TorchDriver, reference: PreTrainedModel, length: int) -> None:
    request = driver.request(prompt(length))
    driver.run((request, length))
    driver.decode([request], 15)
    assert request.token_ids == generate(reference, prompt(length), 16)


def test_batched_equals_transformers(driver: TorchDriver, reference: PreTrainedModel) -> None:
    lengths = [1, 3, 8, 17, 30]
    requests = [driver.request(prompt(length)) for length in lengths]
    driver.run(*((request, len(request.token_ids)) for request in requests))
    driver.decode(requests[::-1], 11)
    for request, length in zip(requests, lengths, strict=True):
        assert request.token_ids == generate(reference, prompt(length), 12)


@pytest.mark.parametrize("chunk", [1, 3, 4, 7, 16])
def test_chunked_prefill_equals_straight(driver: TorchDriver, reference: PreTrainedModel, chunk: int) -> None:
    request = driver.request(prompt(21))
    while request.num_computed_tokens < 21:
        driver.run((request, min(chunk, 21 - request.num_computed_tokens)))
    driver.decode([request], 4)
    assert request.token_ids == generate(reference, prompt(21), 5)


def test_mixed_plan_equals_transformers(driver: TorchDriver, reference: PreTrainedModel) -> None:
    first, second, third = (driver.request(prompt(length)) for length in (6, 19, 10))
    driver.run((first, 6))
    driver.run((first, 1), (second, 8))
    driver.run((first, 1), (second, 11), (third, 4))
    driver.run((first, 1), (second, 1), (third, 6))
    for request, length in ((first, 6), (second, 19), (third, 10)):
        assert request.token_ids == generate(reference, prompt(length), len(request.token_ids) - length)


def test_recomputation_after_preemption(driver: TorchDriver, reference: PreTrainedModel) -> None:
    request = driver.request(prompt(9))
    driver.run((request, 9))
    driver.decode([request], 5)
    request.num_computed_tokens = 0
    request.block_tables = [BlockTable() for _ in driver.layout.groups]
    driver.run((request, len(request.token_ids)))
    assert request.token_ids == generate(reference, prompt(9), 7)


def test_a_block_copy_is_a_fork(driver: TorchDriver, reference: PreTrainedModel) -> None:
    """Two requests share whole blocks; the partial last block is copied before the second one writes to it."""
    parent = driver.request(prompt(6))
    driver.run((parent, 6))
    child = driver.request([*prompt(6), 77])
    child.num_computed_tokens = 6
    copies = []
    for g, table in enumerate(parent.block_tables):
        target = driver.free[g].pop()
        child.block_tables[g].block_ids = [table.block_ids[0], target]
        copies.append(BlockCopy(g, table.block_ids[1], target))
    driver.run((parent, 1), (child, 1), copies=copies)
    assert parent.token_ids == generate(reference, prompt(6), 2)
    assert child.token_ids == generate(reference, [*prompt(6), 77], 1)


def test_a_missing_copy_or_a_wrong_block_is_noticed(driver: TorchDriver) -> None:
    request = driver.request(prompt(6))
    driver.run((request, 6))
    request.block_tables[0].block_ids[1] = driver.free[0].pop()
    step = driver.backend.launch(plan_of(request, 6, 1))
    assert step.logits.isnan().any()


def plan_of(request: ScheduledRequest, start: int, num_new: int) -> StepPlan:
    plan = StepPlan(0)
    plan.add(request, start, num_new, True)
    return plan


def test_seeded_draws_do_not_depend_on_the_batch(driver: TorchDriver) -> None:
    alone = driver.request(prompt(7), temperature=1.0, seed=5, top_p=0.9)
    driver.run((alone, 7))
    driver.decode([alone], 6)
    again = driver.request(prompt(7), temperature=1.0, seed=5, top_p=0.9)
    other = driver.request(prompt(12), temperature=0.7, seed=6)
    driver.run((other, 12), (again, 3))
    driver.run((other, 1), (again, 4))
    driver.decode([other, again], 6)
    assert again.token_ids == alone.token_ids


def test_a_step_without_samples(driver: TorchDriver) -> None:
    request = driver.request(prompt(9))
    assert driver.run((request, 5)) == [-1]


def test_a_broken_plan_costs_only_its_step(driver: TorchDriver, reference: PreTrainedModel) -> None:
    request = driver.request(prompt(4))
    request.block_tables[0].block_ids = [10**9]
    with pytest.raises(StepFailedError):
        driver.backend.launch(plan_of(request, 0, 4))
    test_alone_equals_transformers(driver, reference, 5)
