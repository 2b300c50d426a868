"""A tiny model on the compiled operations of this CPU, and the same model on the reference."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from paged_driver import PagedDriver
from torch import Tensor

from inference_server.backends import model_loading
from inference_server.kernels import reference
from inference_server.kernels.cpu.ops import CpuOps
from inference_server.kernels.ops import PLAIN, Epilogue, FusedLinear


def compiled_and_reference(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[PagedDriver, PagedDriver]:
    """A model on compiled operations, and on the reference except for the products, since torch's own would round to bfloat16."""
    compiled = PagedDriver(folder, dtype="bfloat16")
    ops = compiled.backend._model.ops
    if not isinstance(ops, CpuOps):
        pytest.skip("nothing is compiled on this machine")

    def linear(weight: Tensor, epilogue: Epilogue = PLAIN) -> FusedLinear:
        return replace(ops.linear(weight, epilogue), gated=reference.gated, add_norm=reference.add_norm)

    mixed = SimpleNamespace(**{**vars(reference), "linear": linear})
    monkeypatch.setattr(model_loading, "select_ops", lambda *arguments: mixed)
    return compiled, PagedDriver(folder, dtype="bfloat16")
