"""What both compiled linear layers for CPUs promise: a row's bits depend neither on the rest of the batch nor on the number of threads."""

import pytest
import torch

from inference_server.kernels.cpu.jit import can_compile
from inference_server.kernels.cpu.vectors import VectorUnit, cpu_features, vector_unit
from inference_server.kernels.ops import Linear


def this_machines(wanted: VectorUnit) -> VectorUnit:
    """The unit; skips the test if this machine lacks some of its instructions."""
    widest = vector_unit(cpu_features()) if can_compile() else None
    if widest is None or widest.lanes < wanted.lanes or (wanted.dot and not widest.dot) or (wanted.tiles and not widest.tiles):
        pytest.skip("not on this machine")
    return wanted


def check_rows_do_not_depend_on_their_batch(linear: Linear, x: torch.Tensor) -> None:
    """Compare the rows of `x` [rows, K] in batches of every size, taken from either end."""
    alone = torch.cat([linear(row[None]) for row in x])
    for m in range(1, len(x) + 1):
        assert torch.equal(linear(x[:m]), alone[:m])
        assert torch.equal(linear(x[-m:]), alone[-m:])


def check_threads_change_nothing(linear: Linear, x: torch.Tensor) -> None:
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(linear(x))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
