"""Times the launch configurations of the small-batch linear kernels on this card and writes the best into `kernels/launch_table.json`.

    python scripts/bench/tune_triton_launch.py [--rows 1 16 32 64] [--processes 12]

Shapes are those of Gemma 4 E2B's decode step. Weights rotate past the L2 cache. Where the library's product with separate launches is
faster, the table says null. Kernels are compiled by several processes first; every configuration is checked against the reference.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass
from multiprocessing import get_context

import torch
from decode_chain import EPS, GATED, HEADS, HIDDEN, LAYERS, LM_HEAD, PLE, PLE_GATE, VOCAB
from graph_timer import copy_bytes_per_ms, graph_ms
from torch import Tensor

from inference_server.kernels.fused_norm import AddNorm, add_norm
from inference_server.kernels.gemv import Epilogue, few_rows, one_row, padded_rows, reference_norm_linear
from inference_server.kernels.launch import TABLE_PATH, LaunchConfig, table_key
from inference_server.kernels.linear import library_linear, operation

ROTATED_BYTES = 300_000_000
MAX_ERROR = 0.01
NUM_PROCESSORS, SHARED_BYTES, MIN_SHARED = 132, 220_000, 12_000  # of an H200: only to leave out what cannot be good
MAX_WAVES = 2.0  # of small tiles
PLAIN = Epilogue()


@dataclass(frozen=True, slots=True)
class Case:
    """One entry of the table. norm: of one row, before the product. split: of several rows, whose sums the following norm may add up."""

    rows: int
    n: int
    k: int
    epilogue: Epilogue
    norm: bool = False
    factor: bool = False
    split: bool = False

    @property
    def key(self) -> str:
        if self.split:
            return table_key(f"{padded_rows(self.rows)} rows split", self.n, self.k)
        return table_key(operation(self.rows, self.epilogue, AddNorm(None, None, EPS) if self.norm else None), self.n, self.k)


class Bench:
    """Tensors of a case, and ways to run it on the weights in turn."""

    def __init__(self, case: Case, copies: int) -> None:
        torch.manual_seed(0)
        self.case = case
        self.weights = [torch.randn(case.n, case.k, device="cuda", dtype=torch.bfloat16) * case.k**-0.5 for _ in range(copies)]
        self.x, self.residual = torch.randn(2, case.rows, case.k, device="cuda", dtype=torch.bfloat16)
        self.norm = AddNorm(torch.rand(case.k, device="cuda"), torch.rand(case.k, device="cuda"), EPS) if case.norm else None
        self.after = AddNorm(torch.rand(case.n, device="cuda"), torch.rand(case.n, device="cuda"), EPS) if case.split else None
        self.stream = torch.randn(case.rows, case.n, device="cuda", dtype=torch.bfloat16)
        self.factor = torch.randn(case.rows, case.n, device="cuda", dtype=torch.bfloat16) if case.factor else None

    def kernel(self, config: LaunchConfig, weight: Tensor) -> Tensor:
        if self.case.rows > 1:
            return self._followed(few_rows(self.x, weight, self.case.epilogue, self.factor, config))
        residual = self.residual if self.norm else None
        return one_row(self.x, residual, self.norm, weight, self.case.epilogue, self.factor, config)[1]

    def cublas(self, weight: Tensor) -> Tensor:
        x = add_norm(self.x, self.residual, self.norm)[1] if self.norm else self.x
        return self._followed(library_linear(x, weight, self.case.epilogue, self.factor))

    def separate(self, config: LaunchConfig, weight: Tensor) -> Tensor:
        """The norm in a launch of its own."""
        assert self.norm is not None
        _, normed = add_norm(self.x, self.residual, self.norm)
        return one_row(normed, None, None, weight, self.case.epilogue, self.factor, config)[1]

    def check(self, config: LaunchConfig) -> None:
        got = self.kernel(config, self.weights[0]).float()
        no_norm = AddNorm(None, None, EPS)
        residual = self.residual if self.norm else None
        y = reference_norm_linear(self.x, residual, self.norm or no_norm, self.weights[0], self.case.epilogue, self.factor)[1]
        expected = self._followed(y).float()
        error = ((got - expected).norm() / expected.norm()).item()
        assert error <= MAX_ERROR, f"{self.case.key} {config}: relative error {error:.4f}"

    def _followed(self, y: Tensor) -> Tensor:
        """What adds up partial sums is part of their cost."""
        return add_norm(y, self.stream, self.after)[1] if self.after else y

    def microseconds(self, run: Callable[[Tensor], Tensor]) -> float:
        return graph_ms(lambda: [run(weight) for weight in self.weights], replays=4, rounds=3) / len(self.weights) * 1e3


def cases(rows: int) -> Iterator[Case]:
    for head_dim, heads in itertools.product((256, 512), (HEADS, HEADS + 2)):
        yield Case(rows, heads * head_dim, HIDDEN, PLAIN, norm=rows == 1)
        if heads == HEADS:
            yield Case(rows, HIDDEN, heads * head_dim, PLAIN, split=rows > 1)
    for mlp in (6144, 12288):
        yield Case(rows, 2 * mlp, HIDDEN, GATED, norm=rows == 1)
        yield Case(rows, HIDDEN, mlp, PLAIN, split=rows > 1)
    yield Case(rows, PLE, HIDDEN, PLE_GATE, norm=rows == 1, factor=True)
    yield Case(rows, HIDDEN, PLE, PLAIN, split=rows > 1)
    yield Case(rows, LAYERS * PLE, HIDDEN, PLAIN)
    yield Case(rows, VOCAB, HIDDEN, LM_HEAD, norm=rows == 1)
    if rows == 1:  # as separate launches
        yield from (Case(1, n, HIDDEN, PLAIN) for n in (2048, 2560, 4096, 5120, PLE, VOCAB))
        yield from (Case(1, 2 * mlp, HIDDEN, GATED) for mlp in (6144, 12288))


def candidates(case: Case) -> Iterator[LaunchConfig]:
    if case.rows == 1:
        for rows, block_k, warps in itertools.product((1, 2, 4, 8, 16), (256, 512, 1024, 2048, 4096), (2, 4, 8)):
            tile = rows * case.k * (2 if case.epilogue.gated else 1)
            per_thread = tile / (warps * 32)
            if case.k % block_k == 0 and 24 <= per_thread <= 192 and (block_k >= 512 or case.k <= 256) and rows * block_k >= warps * 256:
                yield LaunchConfig(rows, block_k, warps, 1)
        return
    matrices = 2 if case.epilogue.gated else 1
    heights, splits = ((32, 64), (2, 4, 8)) if case.split else ((16, 32, 64, 128), (1,))
    for rows, block_k, stages, split in itertools.product(heights, (64, 128, 256), (2, 4, 6), splits):
        programs = case.n // matrices // rows * split
        shared = (rows * matrices + max(16, case.rows)) * block_k * 2 * stages
        if not (MIN_SHARED <= shared <= SHARED_BYTES and programs >= 16):
            continue
        waves = programs / (NUM_PROCESSORS * min(16, SHARED_BYTES // shared))
        if (waves <= MAX_WAVES or rows >= 64) and case.k % (block_k * split) == 0 and block_k * stages <= case.k // split:
            yield LaunchConfig(rows, block_k, 8 if rows * matrices > 128 else 4 if rows > 16 else 2, stages, split)


def compile_all(jobs: list[tuple[Case, LaunchConfig]]) -> None:
    """Run each once; what is compiled lands in Triton's cache."""
    for case, config in jobs:
        bench = Bench(case, 1)
        bench.kernel(config, bench.weights[0])
    torch.cuda.synchronize()


def tune(case: Case, copy_speed: float) -> list[int] | None:
    weight_bytes = case.n * case.k * 2
    bench = Bench(case, max(1, min(64, ROTATED_BYTES // weight_bytes)))
    times = {}
    for config in candidates(case):
        bench.check(config)
        times[config] = bench.microseconds(lambda weight, config=config: bench.kernel(config, weight))  # type: ignore[misc]
    cublas = bench.microseconds(bench.cublas)
    best = min(times, key=times.__getitem__)
    separate = bench.microseconds(lambda weight: bench.separate(best, weight)) if case.norm else cublas
    floor = weight_bytes / copy_speed * 1e3
    print(f"{case.key:28s} {times[best]:8.2f} {cublas:8.2f} {separate:8.2f} {floor:8.2f}  {astuple(best)}", flush=True)
    return list(astuple(best)) if times[best] <= min(cublas, separate) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 32, 64])
    parser.add_argument("--processes", type=int, default=12)
    arguments = parser.parse_args()
    todo = [case for rows in arguments.rows for case in cases(rows)]
    jobs = [(case, config) for case in todo for config in candidates(case)]
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_all, [jobs[i :: arguments.processes] for i in range(arguments.processes)]))
    copy_speed = copy_bytes_per_ms()
    print("case: microseconds of the kernel, of the library, with the norm apart, floor; configuration")
    tuned = {case.key: tune(case, copy_speed) for case in todo}
    table = json.loads(TABLE_PATH.read_text(encoding="utf-8"))
    table.setdefault(torch.cuda.get_device_name(), {}).update(tuned)
    lines = [
        f" {json.dumps(card)}: {{\n" + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in entries.items()) + "\n }"
        for card, entries in table.items()
    ]
    TABLE_PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
