"""Times the launch configurations of the small-batch linear kernels on this card and writes the best into `kernels/gpu/launch_table.json`.

    python scripts/bench/tune_triton_launch.py [gemma4-e2b ...] [--rows 1 16 32 64 256] [--shapes 24576x1536] [--int8] [--experts 1 8 32]

Shapes are those of the models' decode steps. The weights of a case rotate, so that L2 never holds the next one. Logits of several rows are
timed with the choice of a greedy token. If the library's product with separate launches is faster, the table gets null. Several processes
compile the kernels first. Every configuration is checked against the reference, and an entry is written as soon as it is known. With
`--experts` it also times sparse experts, for so many rows.
"""

import argparse
import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple
from multiprocessing import get_context

import torch
from expert_launch import ExpertShape, compile_experts, tune_experts
from graph_timer import copy_bytes_per_ms, graph_ms
from launch_candidates import Case, candidates, cases, table_fields
from model_shapes import shapes_of
from torch import Tensor

from inference_server.kernels import reference
from inference_server.kernels.gpu.few_rows import few_rows, highest_of_few_rows
from inference_server.kernels.gpu.fused_norm import add_norm
from inference_server.kernels.gpu.launch import TABLE_PATH, LaunchConfig
from inference_server.kernels.gpu.linear import TritonLinear
from inference_server.kernels.gpu.one_row import one_row
from inference_server.kernels.ops import AddNorm
from inference_server.kernels.quantize import QuantizedWeight, quantize_weight

ROTATED_BYTES = 300_000_000
MAX_ERROR = 0.01
EPS = 1e-6
TOP_K = 8  # experts of a token in the released models


class Bench:
    """The tensors of a case, and ways to run it. copies: number of weights, which runs use in turn."""

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
        """Run our kernel. weight: its scales are None if it is not quantised."""
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
        """Run our kernel after a norm in a launch of its own."""
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
        """Add up the partial sums of a split product, since that is part of its cost."""
        return add_norm(self.stream, y, self.after)[1] if self.after else y


def compile_all(jobs: list[tuple[Case, LaunchConfig]]) -> None:
    """Run each job once, so that Triton's cache holds the compiled kernel."""
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
    parser.add_argument("--shapes", nargs="*", help="shapes of weights to tune, as NxK; all by default")
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
