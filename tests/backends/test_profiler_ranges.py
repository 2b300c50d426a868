"""The ranges that the engine opens around its phases are what torch's profiler shows."""

import pytest
import torch

from inference_server.backends.profiler_ranges import ranges_on


def test_torch_s_profiler_names_the_work_inside_a_range() -> None:
    with torch.autograd.profiler.profile(use_kineto=False) as profile, ranges_on("cpu")("launch step=7"):
        torch.ones(2) + 1
    events = {event.name: event for event in profile.function_events}
    outer, inner = events["launch step=7"].time_range, events["aten::add"].time_range
    assert outer.start <= inner.start <= inner.end <= outer.end


@pytest.mark.gpu
def test_on_cuda_a_range_is_one_of_nvtx_too(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[str] = []
    push = torch.cuda.nvtx.range_push
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: pushed.append(name) or push(name))
    with ranges_on("cuda:0")("collect step=8"):
        torch.ones(2, device="cuda").sum().item()
    assert pushed == ["collect step=8"]
