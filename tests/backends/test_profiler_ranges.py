"""Profilers show the ranges that the engine opens around its phases."""

import pytest
import torch

from inference_server.backends.profiler_ranges import ranges_on


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_torch_s_profiler_names_the_work_inside_a_range(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: None)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: None)
    with torch.autograd.profiler.profile(use_kineto=False) as profile, ranges_on(device)("launch step=7"):
        torch.ones(2) + 1
    events = {event.name: event for event in profile.function_events}
    outer, inner = events["launch step=7"].time_range, events["aten::add"].time_range
    assert outer.start <= inner.start <= inner.end <= outer.end


def test_on_cuda_a_range_is_one_of_nvtx_that_ends_whatever_happens_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", calls.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: calls.append("pop"))
    with pytest.raises(ZeroDivisionError), ranges_on("cuda:0")("collect step=8"):
        calls.append("inside")
        raise ZeroDivisionError
    with ranges_on("cpu")("collect step=9"):
        pass
    assert calls == ["collect step=8", "inside", "pop"]
