"""Rows that are fetched from the host's memory, against torch's embedding."""

from functools import partial

import pytest
import torch
from torch.nn import functional
from triton_cases import DEVICE

from inference_server.kernels.gpu.host_table import HostTable

assert_equal = partial(torch.testing.assert_close, rtol=0, atol=0)


@pytest.mark.parametrize("width", [7, 1024, 2500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_the_tables(width: int, dtype: torch.dtype) -> None:
    table = torch.randn(50, width).to(dtype)
    lookup = HostTable(table, DEVICE)
    for ids in ([3], [49, 0, 3, 3], []):
        on_device = torch.tensor(ids, dtype=torch.int64, device=DEVICE)
        rows = lookup(on_device)
        assert rows.device == on_device.device
        assert_equal(rows.cpu(), functional.embedding(torch.tensor(ids, dtype=torch.int64), table))


@pytest.mark.gpu
@pytest.mark.alone
def test_the_table_takes_no_device_memory_and_a_graph_replays_the_lookup() -> None:
    table = torch.randn(65536, 8960).bfloat16()  # 1.2 GB
    before = torch.cuda.mem_get_info()[0]
    lookup = HostTable(table, DEVICE)
    ids = torch.tensor([5, 65535, 0], device=DEVICE)
    lookup(ids)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows = lookup(ids)
    ids.copy_(torch.tensor([65535, 1, 2]))
    graph.replay()
    assert_equal(rows.cpu(), table[[65535, 1, 2]])
    assert before - torch.cuda.mem_get_info()[0] < 2**28
    assert table.is_pinned()
    del lookup, rows, graph
    assert not table.is_pinned()
