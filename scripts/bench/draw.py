"""Drawing one token a row of 262,144 logits, in one CUDA graph: the fused kernel beside the sampler's eager operations and torch's argmax.

    python scripts/bench/draw.py [--rows 1 32 256]

The floor reads the logits once at the card's copy bandwidth; the kernel reads them twice, the second time in part from the L2 cache.
"""

import argparse

import torch
from graph_timer import copy_bytes_per_ms, graph_ms
from torch import Tensor

from inference_server.kernels.draw import draw
from inference_server.sampling.noise import gumbel, hash_tokens, row_keys

VOCAB = 262144


def eager_draw(logits: Tensor, temperatures: Tensor, keys: Tensor, hashes: Tensor) -> Tensor:
    values = (logits - logits.amax(-1, keepdim=True)).div_(temperatures.unsqueeze(1))
    return values.add_(gumbel(keys, hashes)).argmax(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    bandwidth = copy_bytes_per_ms()
    hashes = hash_tokens(torch.arange(VOCAB, device="cuda"))
    print(f"{torch.cuda.get_device_name()}\nrows | kernel, ms | eager | argmax alone | floor")
    for rows in parser.parse_args().rows:
        logits, temperatures = torch.randn(rows, VOCAB, device="cuda"), torch.rand(rows, device="cuda") + 0.5
        keys = row_keys(range(rows), range(rows), torch.device("cuda"))
        times = (
            graph_ms(lambda logits=logits, t=temperatures, keys=keys: draw(logits, t, keys)),  # type: ignore[misc]
            graph_ms(lambda logits=logits, t=temperatures, keys=keys: eager_draw(logits, t, keys, hashes)),  # type: ignore[misc]
            graph_ms(lambda logits=logits: logits.argmax(-1)),  # type: ignore[misc]
            logits.nbytes / bandwidth,
        )
        print(f"{rows:4d} | " + " | ".join(f"{time:.4f}" for time in times))


if __name__ == "__main__":
    main()
