"""Tries the launch configurations of few-rows products in a model's whole decode step, and puts those that shorten it into the table.

    python scripts/bench/tune_in_step.py [gemma4-e2b] [--rows 32 16] [--shapes 1536x256] [--int8] [--gain 2]

`tune_triton_launch.py` times a product alone, where it overlaps with itself. In a step it overlaps with its neighbours, if shared memory
holds both, and a difference of a tenth of a microsecond alone may be a whole one in the step. This script judges a configuration by the
time of a step's graph, with greedy tokens and 256 tokens before each row's own. Every graph is captured in the same memory and replayed in
turns with the best so far.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from decode_step import DTYPE, Int8Ops, build, step
from launch_candidates import Case, candidates, cases, table_fields
from model_shapes import shapes_of
from released_configs import CONFIGS
from tune_triton_launch import Bench, compile_all, write

from inference_server.kernels.gpu import launch
from inference_server.kernels.gpu.launch import LaunchConfig
from inference_server.kernels.gpu.linear import few_rows_default
from inference_server.kernels.gpu.ops import TritonOps

CONTEXT = 256


class StepGraphs:
    """Graphs of one step that share their memory, so that its place makes no difference between them."""

    def __init__(self, run: Callable[[], object]) -> None:
        run()
        self._run = run
        self._pool = torch.cuda.graph_pool_handle()
        self._keeps_the_pool = self.capture()

    def capture(self) -> torch.cuda.CUDAGraph:
        """Capture the step. Its kernels must have been compiled and run before."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._run()
        return graph


def microseconds(graphs: list[torch.cuda.CUDAGraph], turns: int = 5, replays: int = 8) -> list[float]:
    """Microseconds of one replay of each graph: the median over turns."""
    times: list[list[float]] = [[] for _ in graphs]
    for _ in range(turns):
        for graph, mine in zip(graphs, times, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            graph.replay()
            start.record()
            for _ in range(replays):
                graph.replay()
            end.record()
            torch.cuda.synchronize()
            mine.append(start.elapsed_time(end) / replays * 1e3)
    return [statistics.median(mine) for mine in times]


def improve(graphs: StepGraphs, table: dict[str, list[int] | None], case: Case, gain: float) -> None:
    """Try the case's candidates, and leave the best one in the table if the step is shorter by more than `gain` microseconds.

    Prints the candidates that came nearest to the best before them.
    """
    default = table_fields(few_rows_default(case.rows, case.n, case.k, case.epilogue)) if case.int8 else None
    before, bench, tried = table.get(case.key, default), Bench(case, 1), []
    best, best_graph = before, graphs.capture()
    for config in candidates(case):
        fields = table_fields(config)
        if fields == before:
            continue
        bench.check(config)
        table[case.key] = fields
        graph = graphs.capture()
        old, new = microseconds([best_graph, graph], turns=3)
        if old - new > gain:
            old, new = microseconds([best_graph, graph], turns=9)
            if old - new > gain:
                best, best_graph = fields, graph
        tried.append((new - old, fields))
    table[case.key] = best
    nearest = ", ".join(f"{difference:+.1f} {fields}" for difference, fields in sorted(tried)[:4])
    print(f"{case.key:34s} {before} -> {best}   us a step, to the best before each: {nearest}", flush=True)


def few_rows_cases(model: str, rows: int, shapes: list[str] | None, int8: bool) -> Iterator[Case]:
    for n, k, epilogue in shapes_of(model).layers:
        if not shapes or f"{n}x{k}" in shapes:
            yield from (case for case in cases(rows, n, k, epilogue, int8) if any(candidates(case)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="gemma4-e2b", choices=CONFIGS)
    parser.add_argument("--rows", type=int, nargs="*", default=[32, 16])
    parser.add_argument("--shapes", nargs="*", help="shapes of weights to tune, as NxK; all by default")
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--gain", type=float, default=2.0, help="microseconds a step that a change must save")
    parser.add_argument("--processes", type=int, default=12)
    arguments = parser.parse_args()
    todo = {rows: list(few_rows_cases(arguments.model, rows, arguments.shapes, arguments.int8)) for rows in arguments.rows}
    jobs: list[tuple[Case, LaunchConfig]] = [(case, config) for some in todo.values() for case in some for config in candidates(case)]
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_all, [jobs[i :: arguments.processes] for i in range(arguments.processes)]))
    ops = (Int8Ops if arguments.int8 else TritonOps)(DTYPE)
    model, _ = build(arguments.model, ops)
    table = launch._read_table()[torch.cuda.get_device_name()]
    for rows, some in todo.items():
        graphs = StepGraphs(step(model, ops, rows, CONTEXT, choose=True))
        first = graphs.capture()
        for case in some:
            improve(graphs, table, case, arguments.gain)
            write({case.key: table[case.key]})
        print(f"{rows} rows: {' to '.join(f'{us:.0f}' for us in microseconds([first, graphs.capture()], turns=9))} us a step")


if __name__ == "__main__":
    main()
