"""Linear layers on one core: processor time of torch's bfloat16 product, of our bfloat16 tiles and panels and of our int8 panels.

Shapes are those of Gemma 3 270M. The best of several calls counts. Its time is shown in microseconds and as a rate of operations (two for
each weight and row).
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from inference_server.kernels.cpu.linears import CpuLinears
from inference_server.kernels.cpu.vectors import cpu_features, vector_unit
from inference_server.kernels.quantize import quantize_weight
from inference_server.kernels.reference import StockLinear

SHAPES = {"qkv": (1536, 640), "out": (640, 1024), "gate and up": (4096, 640), "down": (640, 2048), "lm_head": (262144, 640)}
MANY_ROWS = 64  # with this many rows or more the output projection is left out: only rows that sample reach it


def best_us(call: Callable[[], Tensor], seconds: float) -> float:
    """The least microseconds of a call, over as many calls as take about `seconds`, but at least three."""
    best, end, calls = float("inf"), time.monotonic() + seconds, 0
    while calls < 3 or time.monotonic() < end:
        start = time.process_time()
        call()
        best, calls = min(best, time.process_time() - start), calls + 1
    return best * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 512])
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds of measurement for each figure")
    args = parser.parse_args()
    torch.set_num_threads(1)
    unit = vector_unit(cpu_features())
    if unit is None:
        raise SystemExit("this CPU has no AVX2")
    linears, without_tiles = CpuLinears(unit), CpuLinears(replace(unit, tiles=False))
    print(f"{unit}; torch with AMX: {torch.cpu._is_amx_tile_supported()}")
    for name, (num_features, k) in SHAPES.items():
        weight = torch.randn(num_features, k).bfloat16()
        layers = {"torch": StockLinear(weight), "panels": without_tiles(weight), "int8": linears(quantize_weight(weight))}
        if unit.tiles:
            layers["tiles"] = linears(weight)
        for rows in args.rows:
            if name == "lm_head" and rows >= MANY_ROWS:
                continue
            x = torch.randn(rows, k)
            times = {kind: best_us(partial(layer, x), args.seconds) for kind, layer in layers.items()}
            figures = [f"{kind} {us:>8.0f} us {2e-3 * rows * num_features * k / us:>6.0f} Gop/s" for kind, us in times.items()]
            print(f"{name:>12}, {rows:>3} rows: {'   '.join(figures)}", flush=True)


if __name__ == "__main__":
    main()
