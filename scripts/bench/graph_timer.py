"""Timing on a GPU for the kernel benchmarks: the work is replayed as one CUDA graph, so that the host's launch costs do not count."""

import statistics
from collections.abc import Callable

import torch

COPY_BYTES = 1 << 30


def graph_ms(work: Callable[[], object], *, replays: int = 20, rounds: int = 5) -> float:
    """Milliseconds of one run of `work`: the median over rounds of replays back to back."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / replays)
    return statistics.median(times)


def copy_bytes_per_ms() -> float:
    """Bytes, both read and written, that a copy from one large tensor to another moves in a millisecond."""
    source = torch.randn(COPY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / graph_ms(lambda: torch.neg(source, out=target))
