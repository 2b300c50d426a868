"""`CudaGraphPool`: launches captured once and replayed by key, and which sizes of a step are captured.

A graph is a fixed sequence of kernels at fixed addresses, so a step is padded to the next size that there is. Sizes count rows or tokens,
never context: kernels read lengths on the device. All graphs share one memory pool: they run one after the other, and what one leaves for
another lies outside the pool.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from tqdm import tqdm

_MIN_TOKENS = 64


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """Sizes in ascending order. rows: of steps in which every row computes one token. tokens: of all others."""

    rows: tuple[int, ...]
    tokens: tuple[int, ...]

    @classmethod
    def choose(cls, max_rows: int, max_tokens: int, rows: Sequence[int] = ()) -> "GraphSizes":
        """rows: the operator's choice, where 0 is no size; by default 1 to 32, then every 8 to 128, then every 16.

        Token sizes are an eighth to a quarter apart, so that padding costs no more than that; their largest is max_tokens.
        """
        if rows:
            sizes = {size for size in rows if 0 < size <= max_rows}
            return cls(tuple(sorted(sizes)), _token_sizes(max_tokens) if sizes else ())
        usual = [*range(1, 33), *range(40, 129, 8), *range(144, max_rows + 1, 16)]
        return cls(tuple(sorted({size for size in usual if size < max_rows} | {max_rows})), _token_sizes(max_tokens))


def fit(sizes: Sequence[int], size: int) -> int | None:
    """The smallest of `sizes` that is at least `size`, or None."""
    index = bisect_left(sizes, size)
    return sizes[index] if index < len(sizes) else None


class CudaGraphPool:
    """Captured launches by key."""

    def __init__(self) -> None:
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._memory = torch.cuda.graph_pool_handle()

    def capture(self, launches: Mapping[Hashable, Callable[[], None]]) -> None:
        """Capture them in their order; the largest should come first, so that its memory serves the others.

        Each is run once before, for kernels that are compiled or chosen at their first call, and replayed once, since the first replay
        also sends the graph to the device, which would cost a prompt most of a millisecond.
        """
        for key, launch in tqdm(launches.items(), desc="capturing CUDA graphs", unit="graph", disable=None):
            launch()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
                launch()
            graph.replay()
            self._graphs[key] = graph

    def replay(self, key: Hashable) -> None:
        """KeyError for what was not captured."""
        self._graphs[key].replay()


def _token_sizes(max_tokens: int) -> tuple[int, ...]:
    sizes = [_MIN_TOKENS]
    while sizes[-1] < max_tokens:
        sizes.append(sizes[-1] + max(_MIN_TOKENS, 1 << (sizes[-1].bit_length() - 3)))
    return (*(size for size in sizes if size < max_tokens), max_tokens)
