"""Launch parameters of the Triton attention kernels: what was measured best on an H200, and smaller tiles for other cards and dtypes.

The measured values come from `scripts/bench/attention_kernels.py --tune`; `docs/log.md` has the run.
"""

from dataclasses import dataclass
from functools import cache
from math import ceil

import torch

MAX_SPLITS = 128
MAX_PARTS = 1024  # of all rows together: in a graph each is a program, even for a row too short to have it
MEASURED_SHARED_BYTES = 227 * 1024  # what a program may use on the measured card


@dataclass(frozen=True, slots=True)
class DecodeLaunch:
    """block_n: keys of a tile. programs: how many it takes to fill the card. min_keys: the fewest keys worth a program of their own.

    long_keys: rows with more keys are split even where rows alone fill the card, so that none outlasts the others by much.
    """

    block_n: int
    num_warps: int
    num_stages: int
    programs: int = 132
    min_keys: int = 64
    long_keys: int = 1024

    def splits(self, num_heads_of_rows: int, max_keys: int) -> tuple[int, int]:
        """How many programs each KV head of each row gets, and the fewest keys of one, for rows of at most max_keys keys."""
        to_fill = ceil(self.programs / num_heads_of_rows)
        min_keys = self.min_keys if to_fill > 1 else self.long_keys
        to_even_out = min(ceil(max_keys / self.long_keys), MAX_PARTS // num_heads_of_rows)
        return min(MAX_SPLITS, ceil(max_keys / min_keys), max(to_fill, to_even_out)), min_keys


@dataclass(frozen=True, slots=True)
class PrefillLaunch:
    """block_m: rows of a tile, queries times the heads that share a KV head. block_n: keys of a tile.

    value_dim: dimensions of the result that one program computes. Fewer than head_dim leave registers for more rows, but the scores are
    then computed once for each part.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    value_dim: int


MEASURED_DECODES = {
    128: DecodeLaunch(block_n=64, num_warps=4, num_stages=3),
    256: DecodeLaunch(block_n=32, num_warps=4, num_stages=3),
    512: DecodeLaunch(block_n=16, num_warps=4, num_stages=3),
}
MEASURED_PREFILLS = {
    128: PrefillLaunch(block_m=256, block_n=64, num_warps=16, num_stages=3, value_dim=128),
    256: PrefillLaunch(block_m=128, block_n=64, num_warps=8, num_stages=2, value_dim=256),
    512: PrefillLaunch(block_m=128, block_n=32, num_warps=8, num_stages=2, value_dim=256),
}


def decode_launch(head_dim: int, itemsize: int, device: torch.device) -> DecodeLaunch:
    """What was measured, on cards that can hold it, else what fits everywhere. itemsize: bytes of one number of a key."""
    if itemsize == 2 and head_dim in MEASURED_DECODES and _holds_measured_tiles(device):
        return MEASURED_DECODES[head_dim]
    return DecodeLaunch(block_n=max(16, min(64, 32768 // (head_dim * itemsize))), num_warps=4, num_stages=2)


def prefill_launch(head_dim: int, itemsize: int, device: torch.device) -> PrefillLaunch:
    """As `decode_launch`."""
    if itemsize == 2 and head_dim in MEASURED_PREFILLS and _holds_measured_tiles(device):
        return MEASURED_PREFILLS[head_dim]
    if head_dim * itemsize > 512 or itemsize > 2:
        return PrefillLaunch(block_m=32, block_n=16, num_warps=4, num_stages=1, value_dim=head_dim)
    return PrefillLaunch(block_m=64, block_n=32, num_warps=4, num_stages=2, value_dim=head_dim)


@cache
def _holds_measured_tiles(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_properties(device).shared_memory_per_block_optin >= MEASURED_SHARED_BYTES  # type: ignore[attr-defined]
