"""Times the launch configurations of the small-batch linear kernels on this card and writes the best into `kernels/gpu/launch_table.json`.

    python scripts/bench/tune_triton_launch.py [gemma4-e2b ...] [--rows 1 16 32 64 256] [--shapes 24576x1536] [--int8] [--experts 1 8 32]

Shapes are those of the models' decode steps. Weights rotate past the L2 cache. Several rows of logits are timed with the choice of a
greedy token. Where the library's product with separate launches is faster, the table says null. Kernels are compiled by several
processes first; every configuration is checked against the reference, and an entry is written as soon as it is known. With `--experts`
sparse experts are timed too, for so many rows.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, replace
from multiprocessing import get_context

import torch
from expert_launch import ExpertShape, compile_experts, tune_experts
from graph_timer import copy_bytes_per_ms, graph_ms
from model_shapes import shapes_of
from torch import Tensor

from inference_server.kernels import reference
from inference_server.kernels.gpu.few_rows import few_rows, highest_of_few_rows
from inference_server.kernels.gpu.fused_norm import add_norm
from inference_server.kernels.gpu.launch import TABLE_PATH, LaunchConfig, table_key
from inference_server.kernels.gpu.linear import TritonLinear, operation
from inference_server.kernels.gpu.one_row import one_row
from inference_server.kernels.ops import AddNorm, Epilogue
from inference_server.kernels.quantize import QuantizedWeight, quantize_weight

ROTATED_BYTES = 300_000_000
MAX_ERROR = 0.01
SHARED_BYTES = 220_000  # of an H200: only to leave out what cannot be launched
PROCESSORS = 132  # of an H200
TURNS_FROM = 8_000_000  # weights: smaller matrices have no time to take turns in
EPS = 1e-6
TOP_K = 8  # experts of a token, in the released models
WIDE_TILES = [  # height in weight rows, rows of x, block_k, stages, warps
    (16, 16, 256, 6, 2),
    (16, 32, 256, 6, 4),
    (32, 64, 128, 4, 4),
    (64, 64, 128, 4, 4),
    (64, 128, 128, 3, 4),
    (128, 64, 64, 4, 8),
    (128, 128, 64, 4, 8),
]
TILES = [  # height in features, block_k, stages
    (16, 128, 6),
    (16, 128, 8),
    (16, 256, 4),
    (16, 256, 6),
    (32, 64, 6),
    (32, 64, 8),
    (32, 128, 3),
    (32, 128, 4),
    (32, 128, 6),
    (64, 64, 4),
    (64, 64, 5),
    (64, 64, 6),
    (64, 128, 3),
    (64, 128, 4),
    (64, 256, 4),
    (128, 64, 4),
]
SPLIT_TILES = [  # height in weight rows, block_k, stages, warps
    (32, 128, 4, 4),
    (32, 256, 4, 4),
    (64, 64, 4, 4),
    (64, 64, 6, 4),
    (64, 64, 8, 4),
    (64, 128, 3, 4),
    (64, 128, 4, 4),
    (64, 128, 6, 4),
    (64, 256, 4, 4),
    (128, 64, 4, 8),
    (128, 64, 6, 8),
    (128, 128, 3, 8),
    (128, 128, 4, 8),
    (128, 64, 4, 4),
]
SHORT_SPLIT_TILES = [(16, 128, 2, 2), (16, 256, 1, 2), (32, 64, 2, 4), (32, 128, 2, 4), (32, 256, 1, 4), (64, 64, 2, 4), (64, 128, 2, 4)]


@dataclass(frozen=True, slots=True)
class Case:
    """One entry of the table. norm: of one row, before the product. split: of several rows, whose sums the following norm may add up."""

    rows: int
    n: int
    k: int
    epilogue: Epilogue
    norm: bool = False
    split: bool = False
    int8: bool = False

    @property
    def highest(self) -> bool:
        """Whether it makes logits, of which a token is chosen."""
        return self.rows > 1 and self.epilogue.out_dtype is not None and not self.epilogue.partial

    @property
    def key(self) -> str:
        return table_key(operation(self.rows, self.epilogue, norm=self.norm, split=self.split, int8=self.int8), self.n, self.k)


class Bench:
    """Tensors of a case, and ways to run it on the weights in turn."""

    def __init__(self, case: Case, copies: int) -> None:
        torch.manual_seed(0)
        self.case = case
        self.weights = [self._weight() for _ in range(copies)]
        self.x, self.residual = torch.randn(2, case.rows, case.k, device="cuda", dtype=torch.bfloat16)
        self.norm = AddNorm(torch.rand(case.k, device="cuda"), torch.rand(case.k, device="cuda"), EPS) if case.norm else None
        self.after = AddNorm(torch.rand(case.n, device="cuda"), torch.rand(case.n, device="cuda"), EPS) if case.split else None
        self.stream = torch.randn(case.rows, case.n, device="cuda", dtype=torch.bfloat16)
        ungated = case.epilogue.activation is not None and not case.epilogue.gated
        self.factor = torch.randn(case.rows, case.n, device="cuda", dtype=torch.bfloat16) if ungated else None

    def kernel(self, config: LaunchConfig, weight: QuantizedWeight) -> Tensor:
        """The scales of a weight that is not quantised are None."""
        case = self.case
        if case.highest:
            return highest_of_few_rows(self.x, weight.values, case.epilogue, config, weight.scales)
        if case.rows > 1:
            return self._followed(few_rows(self.x, weight.values, case.epilogue, self.factor, config, weight.scales))
        residual = self.residual if self.norm else None
        return one_row(residual, self.x, self.norm, weight.values, case.epilogue, self.factor, config, weight.scales)[1]

    def stock(self, weight: QuantizedWeight) -> Tensor:
        x = add_norm(self.residual, self.x, self.norm)[1] if self.norm else self.x
        layer = self._layer(weight)
        return layer.highest_by_library(x) if self.case.highest else self._followed(layer.by_library(x, self.factor))

    def separate(self, config: LaunchConfig, weight: QuantizedWeight) -> Tensor:
        """The norm in a launch of its own."""
        assert self.norm is not None
        _, normed = add_norm(self.residual, self.x, self.norm)
        return one_row(None, normed, None, weight.values, self.case.epilogue, self.factor, config, weight.scales)[1]

    def check(self, config: LaunchConfig) -> None:
        weight = self.weights[0]
        got = self.kernel(config, weight).float()
        if self.case.highest:
            ids, got = got, few_rows(self.x, weight.values, self.case.epilogue, None, config, weight.scales)
            assert ids.equal(got.argmax(-1).float()), f"{self.case.key} {config}: not the highest"
        x = reference.add_norm(self.residual, self.x, self.norm)[1] if self.norm else self.x
        layer = reference.linear(weight.values.float() * (weight.scales[:, None] if self.case.int8 else 1.0), self.case.epilogue)
        y = layer(x.float(), None if self.factor is None else self.factor.float()).to(self.case.epilogue.out_dtype or x.dtype)
        expected = self._followed(y).float()
        error = ((got - expected).norm() / expected.norm()).item()
        assert error <= MAX_ERROR, f"{self.case.key} {config}: relative error {error:.4f}"

    def microseconds(self, run: Callable[[QuantizedWeight], Tensor]) -> float:
        return graph_ms(lambda: [run(weight) for weight in self.weights], replays=3, rounds=3) / len(self.weights) * 1e3

    def _weight(self) -> QuantizedWeight:
        weight = torch.randn(self.case.n, self.case.k, device="cuda", dtype=torch.bfloat16) * self.case.k**-0.5
        return quantize_weight(weight) if self.case.int8 else QuantizedWeight(weight, None, torch.bfloat16)  # type: ignore[arg-type]

    def _layer(self, weight: QuantizedWeight) -> TritonLinear:
        return TritonLinear(weight.values, self.case.epilogue, torch.bfloat16, weight.scales)

    def _followed(self, y: Tensor) -> Tensor:
        """What adds up partial sums is part of their cost."""
        return add_norm(self.stream, y, self.after)[1] if self.after else y


def cases(rows: int, n: int, k: int, epilogue: Epilogue, int8: bool) -> Iterator[Case]:
    yield Case(rows, n, k, epilogue, split=rows > 1 and epilogue.partial, int8=int8)
    if rows == 1 and not epilogue.partial and epilogue.out_dtype is None:
        yield Case(1, n, k, epilogue, norm=True, int8=int8)


def candidates(case: Case) -> Iterator[LaunchConfig]:
    matrices, size = 2 if case.epilogue.gated else 1, 1 if case.int8 else 2
    if case.rows == 1:
        many_rows, many_warps = (1, 2, 4, 8, 16, 32), (2, 4, 8) if case.k > 1536 else (2, 4)
        for rows, block_k, warps in itertools.product(many_rows, (256, 512, 1024, 2048), many_warps):
            bytes_per_thread = rows * case.k * matrices * size // (warps * 32)
            chunked = block_k >= 512 or case.k <= 256
            if case.k % block_k == 0 and chunked and 24 <= bytes_per_thread <= 384 and rows * block_k >= warps * 256:
                yield LaunchConfig(rows, block_k, warps)
                tiles = case.n // matrices // rows
                for turns in (2, 3, 4):
                    if tiles >= turns * PROCESSORS and case.n * case.k >= TURNS_FROM:
                        yield LaunchConfig(rows, block_k, warps, programs=-(-tiles // turns))
        return
    if case.rows >= 64:
        yield from wide_candidates(case, matrices)
    else:
        yield from split_candidates(case) if case.split else tile_candidates(case, matrices, size)


def split_candidates(case: Case) -> Iterator[LaunchConfig]:
    """From a third of the multiprocessors to more than two programs each."""
    tiles = SPLIT_TILES if case.k > 512 else SHORT_SPLIT_TILES
    if case.n <= 256:
        tiles = [*tiles, (16, 256, 2, 4)]
    for (rows, block_k, stages, warps), split in itertools.product(tiles, (1, 2, 3, 4, 5, 8, 11)):
        fills_the_card = min(case.n // 8, PROCESSORS // 3) <= case.n // rows * split <= 2.2 * PROCESSORS
        if fills_the_card and case.k % block_k == 0 and block_k * stages <= max(512, case.k // split):
            for tokens in many_tokens(case):
                yield LaunchConfig(rows, block_k, warps, stages, split, tokens=tokens)


def many_tokens(case: Case) -> tuple[int, ...]:
    """Where a weight is so small that programs are few and reading x takes them long, half of x may be enough for one."""
    return (0, case.rows // 2) if case.rows > 16 and case.n * case.k < 1_000_000 else (0,)


def wide_candidates(case: Case, matrices: int) -> Iterator[LaunchConfig]:
    """Tiles over both sides; about one or two programs a multiprocessor, by sharing sums or by taking turns where there are more tiles."""
    for height, tokens, block_k, stages, warps in WIDE_TILES:
        rows, across = height // matrices, case.rows // tokens
        tiles = case.n // matrices // rows * across
        if not across or case.k % block_k or not 16 <= tiles <= PROCESSORS * (2 if height < 64 else 64):
            continue
        tile = LaunchConfig(rows, block_k, warps, stages, tokens=tokens)
        if case.split:
            most = max(1, case.k // block_k // 2)
            shares = {max(1, min(beside * PROCESSORS // tiles, most, 8)) for beside in (1, 2)}
            yield from (replace(tile, splits=splits) for splits in shares)
        else:
            turns = [beside * PROCESSORS for beside in (1, 2) if height >= 64 and tiles > 1.3 * beside * PROCESSORS]
            yield from (replace(tile, programs=programs // across) for programs in (0, *turns))


def tile_candidates(case: Case, matrices: int, size: int) -> Iterator[LaunchConfig]:
    """One tile a program, or as many programs as stay on the card taking turns, or as few of these as need no more turns."""
    for rows, block_k, stages in TILES:
        height, num_tiles = rows * matrices, case.n // matrices // rows
        shared = (height * size + max(16, case.rows) * 2) * block_k * stages
        if num_tiles >= 8 and case.k % block_k == 0 and block_k * stages <= case.k and shared <= SHARED_BYTES:
            many_programs = {0}
            for programs in (PROCESSORS, 2 * PROCESSORS):
                if height >= 64 and num_tiles > 1.3 * programs and programs * shared <= SHARED_BYTES * PROCESSORS:
                    many_programs |= {programs, -(-num_tiles // -(-num_tiles // programs))}
            many_warps = [2] if height <= 32 else [4] if height < 128 else [4, 8] if height == 128 else [8]
            for warps, programs, tokens in itertools.product(many_warps, sorted(many_programs), many_tokens(case)):
                yield LaunchConfig(rows, block_k, warps, stages, programs=programs, tokens=tokens)


def compile_all(jobs: list[tuple[Case, LaunchConfig]]) -> None:
    """Run each once; what is compiled lands in Triton's cache."""
    for case, config in jobs:
        bench = Bench(case, 1)
        bench.kernel(config, bench.weights[0])
    torch.cuda.synchronize()


def tune(case: Case, copy_speed: float) -> list[int] | None:
    weight_bytes = case.n * case.k * (1 if case.int8 else 2)
    bench = Bench(case, max(1, min(64, ROTATED_BYTES // weight_bytes)))
    times = {}
    for config in candidates(case):
        bench.check(config)
        times[config] = bench.microseconds(lambda weight, config=config: bench.kernel(config, weight))  # type: ignore[misc]
    library = bench.microseconds(bench.stock)
    best = min(times, key=times.__getitem__)
    separate = bench.microseconds(lambda weight: bench.separate(best, weight)) if case.norm else library
    floor = weight_bytes / copy_speed * 1e3
    print(f"{case.key:36s} {times[best]:8.2f} {library:8.2f} {separate:8.2f} {floor:8.2f}  {astuple(best)}", flush=True)
    if times[best] > min(library, separate):
        return None
    return table_fields(best)


def table_fields(config: LaunchConfig) -> list[int]:
    """Without trailing defaults."""
    fields = list(astuple(config))
    while len(fields) > 5 and not fields[-1]:
        fields.pop()
    return fields


def write(entries: dict[str, list[int] | None]) -> None:
    table = json.loads(TABLE_PATH.read_text(encoding="utf-8"))
    table.setdefault(torch.cuda.get_device_name(), {}).update(entries)
    lines = [
        f" {json.dumps(card)}: {{\n" + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in tuned.items()) + "\n }"
        for card, tuned in table.items()
    ]
    TABLE_PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["gemma4-e2b", "gemma4-e4b", "qwen3-30b-a3b"])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 16, 32, 64])
    parser.add_argument("--shapes", nargs="*", help="of the weights, N x K; all by default")
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--experts", type=int, nargs="*", default=[])
    parser.add_argument("--processes", type=int, default=12)
    arguments = parser.parse_args()
    models = [shapes_of(model) for model in arguments.models]
    layers = dict.fromkeys(layer for model in models for layer in model.layers)
    if arguments.shapes:
        layers = {layer: None for layer in layers if f"{layer[0]}x{layer[1]}" in arguments.shapes}
    experts = dict.fromkeys(ExpertShape(n, TOP_K, hidden, size) for model in models for n, hidden, size in model.experts_shapes)
    every = (case for rows in arguments.rows for layer in layers for case in cases(rows, *layer, arguments.int8))
    todo = [case for case in every if any(candidates(case))]
    jobs = [(case, config) for case in todo for config in candidates(case)]
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        compiled = [pool.submit(compile_experts, shape, rows) for shape in experts for rows in arguments.experts]
        compiled += [pool.submit(compile_all, jobs[i :: arguments.processes]) for i in range(arguments.processes)]
        for future in compiled:
            future.result()
    copy_speed = copy_bytes_per_ms()
    print("case: microseconds of the kernel, of the library, with the norm apart, floor; configuration")
    for case in todo:
        write({case.key: tune(case, copy_speed)})
    for shape in experts:
        for rows in arguments.experts:
            write(dict(tune_experts(shape, rows)))


if __name__ == "__main__":
    main()
