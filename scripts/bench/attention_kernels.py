"""Check and time the Triton attention kernels on a GPU, per layer, on the KV of so many layers that L2 does not hold it.

The floor of a decode is reading its keys and values, that of a prefill the operations of its causal dot products. With --tune every
launch of a grid is checked and timed first, and the best of each head_dim is used for the table. It needs torch and Triton alone:
    PYTHONPATH=src python scripts/bench/attention_kernels.py [--tune]
"""

import argparse
import statistics
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from math import ceil
from multiprocessing import get_context

import torch

from inference_server.kernels.gpu.attention_tuning import DecodeLaunch, PrefillLaunch, decode_launch, prefill_launch
from inference_server.kernels.gpu.decode_attention import decode_attention
from inference_server.kernels.gpu.prefill_attention import prefill_attention
from inference_server.kernels.reference import paged_attention

BYTES_PER_S, FLOPS = 4.27e12, 774e12  # of an H200: copies, bf16 matrix products
BLOCK = 16
COLD_BYTES = 200e6  # KV that a round over all layers reads, unless that takes more than 64 layers
SHARED_BYTES = 227 * 1024
TOLERANCE = 1e-2  # in bf16: norm of the difference over norm of the reference
Launch = DecodeLaunch | PrefillLaunch


@dataclass(frozen=True, slots=True)
class Shape:
    """The attention of one kind of layer."""

    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None


SHAPES = [
    Shape("E2B window", 8, 1, 256, 512),
    Shape("E2B full", 8, 1, 512, None),
    Shape("E4B window", 8, 2, 256, 512),
    Shape("E4B full", 8, 2, 512, None),
    Shape("Qwen3-30B-A3B", 32, 4, 128, None),
    Shape("270M window", 4, 1, 256, 512),
    Shape("270M full", 4, 1, 256, None),
]
TUNED = [SHAPES[0], SHAPES[1], SHAPES[4]]
DECODES = [(1, 128), (1, 1024), (1, 8192), (32, 128), (32, 1024), (32, 8192), (256, 128), (256, 1024), (256, 8192)]
PREFILLS = [1024, 8192]


class Load:
    """`rows` rows of `context` tokens, the last `count` of them new, with KV in so many layers that L2 does not hold it."""

    def __init__(self, shape: Shape, rows: int, context: int, count: int) -> None:
        self.shape, self.rows, self.context, self.count = shape, rows, context, count
        num_blocks = ceil(context / BLOCK)
        layer_bytes = rows * num_blocks * BLOCK * shape.num_kv_heads * shape.head_dim * 4
        layers = max(2, min(64, ceil(COLD_BYTES / layer_bytes)))
        size = (rows * num_blocks, layers, 2, BLOCK, shape.num_kv_heads, shape.head_dim)
        arena = torch.randn(size, dtype=torch.bfloat16, device="cuda")
        self.layers = [(arena[:, layer, 0], arena[:, layer, 1]) for layer in range(layers)]
        self.q = torch.randn(rows * count, shape.num_heads, shape.head_dim, dtype=torch.bfloat16, device="cuda")
        self.out = torch.empty_like(self.q)
        self.tables = torch.randperm(rows * num_blocks, device="cuda").view(rows, num_blocks).int()
        self.starts = torch.arange(0, rows * count + 1, count, dtype=torch.int32, device="cuda")
        self.lengths = torch.full((rows,), context, dtype=torch.int32, device="cuda")
        self.scale = shape.head_dim**-0.5

    def launch(self, layer: int, launch: Launch | None) -> None:
        step = (self.q, *self.layers[layer], self.out, self.tables, self.starts, self.lengths)
        if self.count > 1:
            assert not isinstance(launch, DecodeLaunch)
            prefill_attention(*step, scale=self.scale, window=self.shape.window, launch=launch)
        else:
            assert not isinstance(launch, PrefillLaunch)
            window = self.shape.window
            decode_attention(*step, num_rows=self.rows, max_seq_len=self.context, scale=self.scale, window=window, launch=launch)

    def error(self, launch: Launch | None) -> float:
        """‖out - reference‖ / ‖reference‖ of the first layer."""
        self.out.fill_(float("nan"))
        self.launch(0, launch)
        wanted = paged_attention(self.q, *self.layers[0], self.tables, self.starts, self.lengths, self.scale, self.shape.window).float()
        return float((self.out.float() - wanted).norm() / wanted.norm())

    def time(self, launch: Launch | None) -> float:
        """Median microseconds of one layer, over replays of one captured graph of all layers."""
        return replay_us(lambda layer: self.launch(layer, launch), len(self.layers))

    def floor_us(self) -> float:
        shape = self.shape
        if self.count > 1:
            seen = sum(min(position + 1, shape.window or position + 1) for position in range(self.context - self.count, self.context))
            return self.rows * seen * 4 * shape.num_heads * shape.head_dim / FLOPS * 1e6
        keys = min(self.context, shape.window or self.context)
        return self.rows * keys * shape.num_kv_heads * shape.head_dim * 4 / BYTES_PER_S * 1e6


def replay_us(call: Callable[[int], None], num_layers: int) -> float:
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in range(num_layers):
            call(layer)
    times = []
    for _ in range(12):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1000 / num_layers)
    return statistics.median(times[2:])


def decode_grid(shape: Shape) -> list[Launch]:
    default = decode_launch(shape.head_dim, 2, torch.device("cuda"))
    tiles = product((16, 32, 64, 128), (2, 4, 8), (2, 3, 4))
    return [
        replace(default, block_n=n, num_warps=warps, num_stages=stages)
        for n, warps, stages in tiles
        if 4096 <= n * shape.head_dim <= 16384 and (stages - 1) * n * shape.head_dim * 4 <= SHARED_BYTES and 8 * warps <= max(n, 32)
    ]


def prefill_grid(shape: Shape) -> list[Launch]:
    tiles = product((64, 128, 256), (16, 32, 64, 128), (4, 8, 16), (1, 2, 3, 4), (128, 256, 512))
    return [
        PrefillLaunch(m, n, warps, stages, value_dim)
        for m, n, warps, stages, value_dim in tiles
        if (m * shape.head_dim + max(1, stages - 1) * n * (shape.head_dim + value_dim)) * 2 <= SHARED_BYTES
        and shape.head_dim // 2 <= value_dim <= shape.head_dim
        and (value_dim == shape.head_dim or shape.head_dim == 512)
        and m * value_dim <= 8192 * min(warps, 8)
        and (warps == 16) == (m == 256)
        and (value_dim == 128 or warps < 16)
        and n * shape.head_dim >= 8192
    ]


def probe(shape: Shape, count: int, launch: Launch) -> float | None:
    """The error of a launch on a small load, after compiling it; None if the card refuses it."""
    from triton.runtime.errors import OutOfResources

    try:
        return Load(shape, rows=2, context=1000, count=count).error(launch)
    except OutOfResources:
        return None


def compiled(jobs: list[tuple[Shape, int, Launch]]) -> Iterable[tuple[Shape, int, Launch]]:
    """Yield the jobs whose kernels compile and are right. Several processes compile them into Triton's cache."""
    with ProcessPoolExecutor(14, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(probe, *job): job for job in jobs}
        for done in as_completed(running):
            error = done.result()
            if error is not None and error < TOLERANCE:
                yield running[done]
            else:
                print("unusable:", error, running[done], flush=True)


def tune() -> dict[tuple[str, bool], list[tuple[Launch, list[float]]]]:
    """By shape and whether it is prefill: the launches, best first, each with its times in µs over the tuning loads."""
    jobs = [(s, 1, launch) for s in TUNED for launch in decode_grid(s)] + [(s, 333, launch) for s in TUNED for launch in prefill_grid(s)]
    usable = list(compiled(jobs))
    print(f"{len(usable)} of {len(jobs)} launches are usable", flush=True)
    results = {}
    for shape in TUNED:
        for prefill in (False, True):
            launches = [launch for s, count, launch in usable if s == shape and (count > 1) == prefill]
            loads = [Load(shape, 1, n, n) for n in PREFILLS] if prefill else [Load(shape, b, n, 1) for b, n in TUNING_DECODES]
            ranked = rank(launches, loads)
            if not prefill:
                best = [launch for launch, _ in ranked[:2] if isinstance(launch, DecodeLaunch)]
                splits = product(best, (132, 264), (64, 512), (256, 512, 1024, 2048))
                ranked = rank([replace(b, programs=p, min_keys=k, long_keys=n) for b, p, k, n in splits], loads) + ranked
            results[shape.name, prefill] = ranked
            print(f"{shape.name}, {'prefill' if prefill else 'decode'}, floors {[round(load.floor_us(), 1) for load in loads]}")
            for launch, times in ranked[:6]:
                print("  ", [round(us, 1) for us in times], launch, flush=True)
            del loads
    return results


TUNING_DECODES = [(1, 300), (1, 1024), (1, 8192), (32, 300), (32, 1024), (32, 8192), (256, 300), (256, 1024)]


def rank(launches: Iterable[Launch], loads: list[Load]) -> list[tuple[Launch, list[float]]]:
    """The launches and their times, ordered by the geometric mean of the times."""
    timed = [(launch, [load.time(launch) for load in loads]) for launch in launches]
    return sorted(timed, key=lambda entry: statistics.geometric_mean(entry[1]))


def report() -> None:
    print(f"{'layer':16} {'load':18} {'µs':>9} {'floor':>9} {'of floor':>9}  launch")
    for shape in SHAPES:
        loads = [(rows, context, 1) for rows, context in DECODES] + [(1, n, n) for n in PREFILLS]
        for rows, context, count in loads:
            load = Load(shape, rows, context, count)
            launch = (decode_launch if count == 1 else prefill_launch)(shape.head_dim, 2, load.q.device)
            assert rows * context > 100_000 or load.error(None) < TOLERANCE
            us, floor = load.time(None), load.floor_us()
            name = f"prefill {context}" if count > 1 else f"b{rows} at {context}"
            print(f"{shape.name:16} {name:18} {us:9.1f} {floor:9.1f} {floor / us:9.0%}  {launch}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tune", action="store_true", help="time a grid of launches and print the best of each shape")
    if parser.parse_args().tune:
        tune()
    report()


if __name__ == "__main__":
    main()
