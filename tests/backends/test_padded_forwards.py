"""Forwards in the shapes that are captured on CUDA, without capture: the same launches on the same memory, in the interpreter."""

from pathlib import Path

import pytest
import torch
from paged_driver import PROMPTS, PagedDriver
from tiny_models import save_tiny

pytest.importorskip("triton", reason="triton is not installed: its kernels exist on Linux only")

from inference_server.backends import model_loading, model_runner
from inference_server.backends.cuda_graph_pool import GraphSizes
from inference_server.backends.staged_rows import StepShape
from inference_server.core.plan import StepPlan
from inference_server.kernels.gpu.ops import TritonOps

SIZES = GraphSizes(rows=(1, 3), tokens=(8, 20))
FEW = 2

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled where there is a GPU"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # padding tokens attend to nothing and compute with whatever is in memory
]


class Replays:
    """Stands in for a `CudaGraphPool`: runs what the captured forward of a shape would run."""

    def __init__(self, runner: model_runner.ModelRunner) -> None:
        self.shapes: list[StepShape] = []
        self._runner = runner

    def replay(self, shape: StepShape) -> None:
        self.shapes.append(shape)
        self._runner._forward(self._runner._batch.inputs(shape))


def padded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[PagedDriver, Replays]:
    monkeypatch.setattr(model_loading, "select_ops", lambda device, dtype, torch_compile: TritonOps(dtype))
    monkeypatch.setattr(model_runner, "_FEW_SAMPLED", FEW)
    driver = PagedDriver(folder, max_batch_size=6)
    runner = driver.backend._runner
    replays = Replays(runner)
    runner._graphs, runner._sizes = replays, SIZES
    return driver, replays


def mixed(num_tokens: int, num_sampled: int | None) -> StepShape:
    return StepShape(num_tokens, min(num_tokens, 6), only_singles=False, num_sampled=num_sampled)


@pytest.mark.heavy
def test_padding_changes_no_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny("gemma4-e2b", tmp_path)
    plain = PagedDriver(tmp_path, max_batch_size=6)
    driver, replays = padded(tmp_path, monkeypatch)
    steps = [
        ((0, 1), (1, 4), (2, 9)),  # three rows sample: more than few
        ((0, 1), (1, 1), (3, 5)),  # the last row ends in the middle of its prompt
        ((4, 6),),  # nothing is sampled
        ((3, 12), (4, 8)),  # a full shape, one row samples
        ((0, 1), (1, 1)),
    ]
    for each in (plain, driver):
        requests = [each.request(prompt, slot) for slot, prompt in enumerate(PROMPTS)]
        for rows in steps:
            plan = StepPlan(0)
            for n, count in rows:
                each.add(plan, requests[n], count)
            for request, token in zip(plan.requests, each.run(plan).token_ids, strict=True):
                if token >= 0:
                    request.token_ids.append(token)
    torch.testing.assert_close(torch.cat(driver.sampler.logits), torch.cat(plain.sampler.logits), atol=1e-4, rtol=0)
    assert len(torch.cat(plain.sampler.logits)) == 8
    assert replays.shapes == [mixed(20, 6), mixed(8, FEW), mixed(8, FEW), mixed(20, FEW), StepShape(3, 3, only_singles=True)]


@pytest.mark.parametrize("name, sampled", [("gemma4-e2b", (6, FEW)), ("qwen3", (None,))])
def test_what_is_captured_is_what_steps_ask_for(
    name: str, sampled: tuple[int | None, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured: list[StepShape] = []

    class Captures:
        def capture(self, launches: dict[StepShape, object]) -> None:
            captured.extend(launches)

    monkeypatch.setattr(model_runner, "CudaGraphPool", Captures)
    monkeypatch.setattr(model_runner, "_FEW_SAMPLED", FEW)
    save_tiny(name, tmp_path)
    runner = PagedDriver(tmp_path, max_batch_size=6).backend._runner
    monkeypatch.setattr(runner._choice, "launches", lambda hidden, sizes: {})
    runner.capture(SIZES)
    assert captured == [mixed(n, count) for n in (20, 8) for count in sampled] + [StepShape(n, n, only_singles=True) for n in (3, 1)]
