"""Times the launch configurations of the kernels for sparse experts, for `tune_triton_launch.py`."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from graph_timer import graph_ms
from torch import Tensor

from inference_server.kernels.gpu import experts
from inference_server.kernels.gpu.launch import LaunchConfig, table_key
from inference_server.kernels.ops import Activation
from inference_server.kernels.reference import moe_experts

MAX_ERROR = 0.01
SHARED_BYTES = 220_000  # an H200's, only to leave out what cannot be launched


@dataclass(frozen=True, slots=True)
class ExpertShape:
    num_experts: int
    top_k: int
    hidden_size: int
    size: int


class ExpertsBench:
    """A layer's experts on `rows` rows. configs: takes the place of the launch table. kernels: the entries that a run has asked for."""

    def __init__(self, shape: ExpertShape, rows: int) -> None:
        torch.manual_seed(0)
        self.configs: dict[str, LaunchConfig] = {}
        self.kernels: dict[str, tuple[str, int, int]] = {}
        experts.tuning = self._tuning  # type: ignore
        gate_up = self._random(shape.num_experts, 2 * shape.size, shape.hidden_size)
        self.layer = experts.TritonExperts(gate_up, self._random(shape.num_experts, shape.hidden_size, shape.size), Activation.SILU)
        self.x = torch.randn(rows, shape.hidden_size, device="cuda", dtype=torch.bfloat16)
        scores = torch.rand(8, rows, shape.num_experts, device="cuda")  # several, so that L2 does not hold what the next one chooses
        self.routings = [(step.indices.int(), step.values) for step in (one.softmax(-1).topk(shape.top_k) for one in scores)]
        expected = moe_experts(self.x, gate_up, self.layer.down, self.routings[0][0].long(), self.routings[0][1], Activation.SILU)
        self.expected = expected.float()

    def run(self, routing: int = 0) -> Tensor:
        return self.layer(self.x, *self.routings[routing])

    def microseconds(self) -> float:
        return graph_ms(lambda: [self.run(i) for i in range(len(self.routings))], replays=4, rounds=3) / len(self.routings) * 1e3

    def check(self) -> None:
        got = self.run().float()
        error = (((got.sum(0) if got.ndim == 3 else got) - self.expected).norm() / self.expected.norm()).item()
        assert error <= MAX_ERROR, f"{self.configs}: relative error {error:.4f}"

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16).mul_(shape[-1] ** -0.5)

    def _tuning(self, name: str, n: int, k: int, device: torch.device, default: LaunchConfig) -> LaunchConfig:
        key = table_key(name, n, k)
        self.kernels[key] = (name, n, k)
        return self.configs.get(key, default)


def candidates(name: str, k: int) -> Iterator[LaunchConfig]:
    if name.startswith("experts 1 row"):
        for rows, block_k, warps in itertools.product((1, 2, 4, 8), (256, 512, 1024), (2, 4, 8)):
            if k % block_k == 0 and 8 <= rows * block_k // (warps * 32) <= 64:
                yield LaunchConfig(rows, block_k, warps)
        return
    block_m = int(name.split()[2 if "sorted" in name else 1])
    tiles = [(64, 64), (64, 128), (128, 64), (256, 64)] if block_m >= 64 else [(16, 128), (16, 256), (32, 128), (64, 64), (64, 128)]
    for (rows, block_k), stages in itertools.product(tiles, (3, 4, 6)):
        tall = rows * (2 if "gated" in name else 1)
        if k % block_k == 0 and tall <= 256 and (tall + block_m) * block_k * 2 * stages <= SHARED_BYTES:
            yield LaunchConfig(rows, block_k, 8 if tall * block_m > 8192 else 4 if rows >= 32 else 2, stages)


def compile_experts(shape: ExpertShape, rows: int) -> None:
    """Run each candidate once, so that Triton's cache holds its compiled kernel."""
    bench = ExpertsBench(shape, rows)
    bench.run()
    for key, (name, _, k) in list(bench.kernels.items()):
        for config in candidates(name, k):
            bench.configs[key] = config
            bench.run()
    torch.cuda.synchronize()


def tune_experts(shape: ExpertShape, rows: int) -> Iterator[tuple[str, list[int]]]:
    """Yield the best entries of the launch table. The kernels are tuned in turn, each after the best launches of those before it."""
    bench = ExpertsBench(shape, rows)
    bench.check()
    before = bench.microseconds()
    for key, (name, _, k) in list(bench.kernels.items()):
        times: dict[LaunchConfig, float] = {}
        for config in candidates(name, k):
            bench.configs[key] = config
            bench.check()
            times[config] = bench.microseconds()
        best = bench.configs[key] = min(times, key=times.__getitem__)
        print(f"{key:40s} both {times[best]:8.1f} us, by default {before:8.1f}  {best}", flush=True)
        yield key, [best.rows, best.block_k, best.num_warps, best.num_stages, best.splits]
