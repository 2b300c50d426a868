"""Choose one token a row from 262,144 logits, in one CUDA graph: each variant of `DeviceSampler`, torch's argmax and the eager draw.

    python scripts/bench/draw.py [--rows 1 32 256]

The floor reads the logits once at the card's copy bandwidth. "Zipf" logits fall with the logarithm of the rank, as a model's do; normal
ones are flat, so that a top-p of 0.95 keeps most of the vocabulary and no candidates can be gathered: the worst case. The last two
columns are not of a graph: the penalties of all rows, and the processor time of `prepare` for a batch whose rows stay the same.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from graph_timer import copy_bytes_per_ms, graph_ms
from torch import Tensor

from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling.device_adjustment import DeviceAdjustment
from inference_server.sampling.device_sampler import DeviceSampler
from inference_server.sampling.noise import gumbel, hash_tokens, row_keys
from inference_server.sampling.token_rows import SamplingRows

VOCAB = 262144
DRAWN = SamplingParams(temperature=0.8)
CASES = {
    "greedy": ("zipf", SamplingParams(temperature=0.0)),
    "drawn": ("zipf", DRAWN),
    "top-k 64, top-p 0.95": ("zipf", replace(DRAWN, top_k=64, top_p=0.95)),
    "top-p 0.95": ("zipf", replace(DRAWN, top_p=0.95)),
    "min-p 0.05": ("zipf", replace(DRAWN, min_p=0.05)),
    "top-k 64, normal": ("normal", replace(DRAWN, top_k=64)),
    "top-p 0.95, normal": ("normal", replace(DRAWN, top_p=0.95)),
}
ROW = " | ".join(["{:>4}", *["{:>20}"] * (len(CASES) + 5)])


def logits_of(kind: str, rows: int) -> Tensor:
    normal = torch.randn(rows, VOCAB, device="cuda")
    if kind == "normal":
        return normal
    ranks = normal.argsort(-1).argsort(-1) + 1
    return 25 - 1.8 * ranks.float().log()


def eager_draw(logits: Tensor, temperatures: Tensor, keys: Tensor, hashes: Tensor) -> Tensor:
    values = (logits - logits.amax(-1, keepdim=True)).div_(temperatures.unsqueeze(1))
    return values.add_(gumbel(keys, hashes)).argmax(-1)


def variant_ms(logits: Tensor, params: SamplingParams) -> float:
    rows = len(logits)
    sampler = DeviceSampler(rows, VOCAB, logits.device)
    variant = sampler.prepare([replace(params, seed=row) for row in range(rows)], range(rows), range(rows))
    return graph_ms(lambda: sampler.run(logits, variant))


def eager_ms(logits: Tensor) -> float:
    rows, device = len(logits), logits.device
    keys, hashes = row_keys(range(rows), range(rows), device), hash_tokens(torch.arange(VOCAB, device=device))
    return graph_ms(lambda: eager_draw(logits, torch.ones(rows, device=device), keys, hashes))


def penalties_ms(logits: Tensor) -> float:
    """Milliseconds of one step of `DeviceAdjustment`, from its first launch to its last, with the host's work."""
    rows = len(logits)
    params = SamplingParams(presence_penalty=0.1, repetition_penalty=1.1, logit_bias=((5, 1.0),))
    requests = [ScheduledRequest(f"r{row}", list(range(100)), params, 0.0, slot=row) for row in range(rows)]
    adjustment, token_ids = DeviceAdjustment(rows, VOCAB, logits.device), torch.zeros(rows, dtype=torch.int64, device="cuda")
    times = []
    for step in range(12):
        torch.cuda.synchronize()
        start = time.perf_counter()
        adjustment.apply(logits, SamplingRows(requests, [100 + step] * rows, range(rows)))
        adjustment.count(token_ids)
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return min(times[2:])


def prepare_ms(rows: int) -> float:
    sampler = DeviceSampler(rows, VOCAB, torch.device("cuda"))
    params: Sequence[SamplingParams] = [replace(DRAWN, seed=row) for row in range(rows)]
    sampler.prepare(params, range(rows), range(rows))
    start = time.process_time()
    for step in range(50):
        sampler.prepare(params, range(step, rows + step), range(rows))
    return 1000 * (time.process_time() - start) / 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    arguments = parser.parse_args()
    bandwidth = copy_bytes_per_ms()
    print(f"{torch.cuda.get_device_name()}, ms\n" + ROW.format("rows", *CASES, "argmax", "eager draw", "floor", "penalties", "prepare"))
    for rows in arguments.rows:
        logits = {kind: logits_of(kind, rows) for kind in ("zipf", "normal")}
        plain = logits["normal"]
        times = [variant_ms(logits[kind], params) for kind, params in CASES.values()]
        times += [graph_ms(lambda plain=plain: plain.argmax(-1)), eager_ms(plain), plain.nbytes / bandwidth]  # type: ignore[misc]
        times += [penalties_ms(plain), prepare_ms(rows)]
        print(ROW.format(rows, *(f"{ms:.4f}" for ms in times)), flush=True)


if __name__ == "__main__":
    main()
