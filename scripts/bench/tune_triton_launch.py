"""Times the launch configurations of the small-batch linear kernels on this card and writes the best into `kernels/launch_table.json`.

    python scripts/bench/tune_triton_launch.py [gemma4-e2b ...] [--rows 1 16 32 64] [--processes 12]

Shapes are those of the models' decode steps. Weights rotate past the L2 cache. Where the library's product with separate launches is
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
from graph_timer import copy_bytes_per_ms, graph_ms
from released_configs import CONFIGS
from torch import Tensor

from inference_server.kernels import reference
from inference_server.kernels.fused_norm import add_norm
from inference_server.kernels.gemv import few_rows, one_row
from inference_server.kernels.launch import TABLE_PATH, LaunchConfig, table_key
from inference_server.kernels.linear import library_linear, operation
from inference_server.kernels.ops import PLAIN, AddNorm, Epilogue, FusedLinear
from inference_server.models.registry import find_family
from inference_server.models.weights import RandomWeights

ROTATED_BYTES = 300_000_000
MAX_ERROR = 0.01
NUM_PROCESSORS, SHARED_BYTES, MIN_SHARED = 132, 220_000, 12_000  # of an H200: only to leave out what cannot be good
MAX_WAVES = 2.0  # of small tiles
EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Case:
    """One entry of the table. norm: of one row, before the product. split: of several rows, whose sums the following norm may add up."""

    rows: int
    n: int
    k: int
    epilogue: Epilogue
    norm: bool = False
    split: bool = False

    @property
    def key(self) -> str:
        return table_key(operation(self.rows, self.epilogue, norm=self.norm, split=self.split), self.n, self.k)


class ShapeRecorder:
    """The reference operations, which note what each linear layer is made of."""

    def __init__(self) -> None:
        self.layers: dict[tuple[int, int, Epilogue], None] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(reference, name)

    def linear(self, weight: Tensor, epilogue: Epilogue = PLAIN) -> FusedLinear:
        self.layers[weight.shape[0], weight.shape[1], epilogue] = None
        return reference.linear(weight, epilogue)


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
        ungated = case.epilogue.activation is not None and not case.epilogue.gated
        self.factor = torch.randn(case.rows, case.n, device="cuda", dtype=torch.bfloat16) if ungated else None

    def kernel(self, config: LaunchConfig, weight: Tensor) -> Tensor:
        if self.case.rows > 1:
            return self._followed(few_rows(self.x, weight, self.case.epilogue, self.factor, config))
        residual = self.residual if self.norm else None
        return one_row(residual, self.x, self.norm, weight, self.case.epilogue, self.factor, config)[1]

    def cublas(self, weight: Tensor) -> Tensor:
        x = add_norm(self.residual, self.x, self.norm)[1] if self.norm else self.x
        return self._followed(library_linear(x, weight, self.case.epilogue, self.factor))

    def separate(self, config: LaunchConfig, weight: Tensor) -> Tensor:
        """The norm in a launch of its own."""
        assert self.norm is not None
        _, normed = add_norm(self.residual, self.x, self.norm)
        return one_row(None, normed, None, weight, self.case.epilogue, self.factor, config)[1]

    def check(self, config: LaunchConfig) -> None:
        got = self.kernel(config, self.weights[0]).float()
        x = reference.add_norm(self.residual, self.x, self.norm)[1] if self.norm else self.x
        layer = reference.linear(self.weights[0].float(), self.case.epilogue)
        y = layer(x.float(), None if self.factor is None else self.factor.float()).to(self.case.epilogue.out_dtype or x.dtype)
        expected = self._followed(y).float()
        error = ((got - expected).norm() / expected.norm()).item()
        assert error <= MAX_ERROR, f"{self.case.key} {config}: relative error {error:.4f}"

    def _followed(self, y: Tensor) -> Tensor:
        """What adds up partial sums is part of their cost."""
        return add_norm(self.stream, y, self.after)[1] if self.after else y

    def microseconds(self, run: Callable[[Tensor], Tensor]) -> float:
        return graph_ms(lambda: [run(weight) for weight in self.weights], replays=4, rounds=3) / len(self.weights) * 1e3


def layers_of(model: str) -> list[tuple[int, int, Epilogue]]:
    """(N, K, epilogue) of each kind of linear layer that the model has."""
    found = find_family(CONFIGS[model])
    assert found is not None
    recorder = ShapeRecorder()
    weights = RandomWeights(torch.device("meta"), torch.bfloat16, recorder)  # type: ignore[arg-type]
    found[1].model(found[1].config_from_dict(CONFIGS[model]), weights)
    return list(recorder.layers)


def cases(rows: int, n: int, k: int, epilogue: Epilogue) -> Iterator[Case]:
    yield Case(rows, n, k, epilogue, split=rows > 1 and epilogue.partial)
    if rows == 1 and not epilogue.partial and epilogue.out_dtype is None:
        yield Case(1, n, k, epilogue, norm=True)


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
    parser.add_argument("models", nargs="*", default=["gemma4-e2b", "gemma4-e4b", "qwen3-30b-a3b"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 32, 64])
    parser.add_argument("--processes", type=int, default=12)
    arguments = parser.parse_args()
    layers = dict.fromkeys(layer for model in arguments.models for layer in layers_of(model))
    todo = [case for rows in arguments.rows for layer in layers for case in cases(rows, *layer)]
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
