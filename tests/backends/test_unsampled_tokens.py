"""What a step leaves out after the last layer that owns KV: which tokens pass through which layers, and that nothing else changes."""

from collections import defaultdict
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from paged_driver import PROMPTS, PagedDriver
from tiny_models import save_tiny

from inference_server.backends.null_plan import null_plan
from inference_server.core.plan import StepPlan
from inference_server.core.sampling_params import SamplingParams

OWN, LAYERS = 4, 8  # of the tiny E2B and E4B
SCORED = SamplingParams(temperature=0.0, prompt_logprobs=2)


@pytest.fixture(scope="module", params=["gemma4-e2b", "gemma4-e4b"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    save_tiny(request.param, path)
    return path


@pytest.fixture(scope="module")
def unshared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("unshared")
    save_tiny("gemma4-12b", path)
    return path


def watch(driver: PagedDriver) -> list[list[int]]:
    """From now on, record how many tokens each layer sees: one list for each step."""
    layers, steps = driver.backend._model.model.layers, []

    def seen(first: bool, layer: Callable[..., Any]) -> Callable[..., Any]:
        def call(x: torch.Tensor | None, update: torch.Tensor, *rest: Any) -> Any:
            if first:
                steps.append([])
            steps[-1].append(update.shape[-2])
            return layer(x, update, *rest)

        call.layer_type = layer.layer_type  # type: ignore[attr-defined]
        return call

    layers[:] = [seen(i == 0, layer) for i, layer in enumerate(layers)]
    return steps


def run(driver: PagedDriver, *rows: tuple[Any, int]) -> None:
    plan = StepPlan(0)
    for request, count in rows:
        driver.add(plan, request, count)
    for request, token in zip(plan.requests, driver.run(plan).token_ids, strict=True):
        if token >= 0:
            request.token_ids.append(token)


def test_layers_without_kv_see_the_sampled_tokens_alone(folder: Path) -> None:
    driver = PagedDriver(folder)
    steps = watch(driver)
    one, two, three = (driver.request(PROMPTS[n], slot) for slot, n in enumerate((2, 3, 4)))
    run(driver, (one, 9))
    run(driver, (one, 1), (two, 17), (three, 20))  # the third ends in the middle of its prompt
    run(driver, (three, 5))  # and so does this chunk
    run(driver, (one, 1), (two, 1))
    run(driver, (one, 1), (three, 1))  # a chunk of one token: all rows are single, one is not sampled from
    shared = LAYERS - OWN
    assert steps[0] == [9] * OWN + [1] * shared
    assert steps[1] == [38] * OWN + [2] * shared
    assert steps[2] == [5] * OWN
    assert steps[3] == steps[4] == [2] * LAYERS


def test_a_prompt_that_is_scored_passes_through_every_layer(folder: Path) -> None:
    driver = PagedDriver(folder)
    steps = watch(driver)
    scored, other = driver.request(PROMPTS[4], 0), driver.request(PROMPTS[3], 1)
    scored.sampling = SCORED
    run(driver, (scored, 20), (other, 17))
    assert steps == [[37] * LAYERS]


def test_a_model_whose_layers_all_own_kv_drops_nothing(unshared: Path) -> None:
    driver = PagedDriver(unshared)
    steps = watch(driver)
    run(driver, (driver.request(PROMPTS[4], 0), 20))
    assert steps == [[20] * LAYERS]


def test_scores_of_prompts_and_the_tokens_beside_them_stay_the_same(folder: Path) -> None:
    driver = PagedDriver(folder, seed=1)
    expected = driver.generate(PROMPTS, 2)
    whole = defaultdict(list)
    for chunk in (100, 7):
        request, plan = driver.request(PROMPTS[4], 0), None
        request.sampling = SCORED
        while plan is None or not plan.samples[0]:
            plan = StepPlan(0)
            driver.add(plan, request, min(chunk, request.num_tokens - request.num_computed_tokens))
            result = driver.run(plan)
            whole[chunk] += [value.logprob for value in result.prompt_logprobs.get(0, [])]
        assert result.token_ids[0] == expected[4][0]
    assert len(whole[7]) == len(PROMPTS[4]) - 1
    assert whole[7] == pytest.approx(whole[100], abs=1e-4)


def test_the_step_that_memory_is_measured_by_passes_through_every_layer(folder: Path) -> None:
    driver = PagedDriver(folder)
    steps = watch(driver)
    driver.run(null_plan([3, 3], driver.layout, prompt_logprobs=1))
    assert steps == [[6] * LAYERS]


def masses(folder: Path, drops: bool) -> list[torch.Tensor]:
    driver = PagedDriver(folder, block_mass=True)
    driver.backend._model.model.drops_unsampled = drops
    mass, found = driver.backend._block_mass.values, []
    mass.zero_()
    one, two, three = (driver.request(PROMPTS[n], slot) for slot, n in enumerate((2, 3, 4)))
    for rows in (((one, 9), (two, 17)), ((one, 1), (two, 1), (three, 31)), ((one, 1), (three, 1)), ((two, 1), (one, 1))):
        run(driver, *rows)
        found.append(mass.clone())
    return found


def test_decoding_rows_add_their_mass_in_every_full_layer_that_sees_all_tokens(folder: Path) -> None:
    heads, full_layers, with_own_kv = 4, 2, 1
    for drops, in_mixed_steps in ((True, with_own_kv), (False, full_layers)):
        in_three_steps = heads * 2 * in_mixed_steps, heads * 2 * full_layers, heads * 2 * full_layers
        expected = [0, *accumulate(in_three_steps)]
        assert [mass.sum().item() for mass in masses(folder, drops)] == pytest.approx(expected)
