"""Launch parameters of the Triton attention kernels: values measured per head_dim, and a default for shapes nobody measured.

Pure arithmetic without torch or Triton. The measured values come from `scripts/bench/attention_kernels.py`; `docs/log.md` has the run.
"""

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class DecodeLaunch:
    """block_n: keys of a tile. programs: how many it takes to fill the card. min_keys: the fewest keys worth a program of their own.

    long_keys: rows with more keys are cut also where there are rows enough, so that none outlasts the others by much.
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
        return min(MAX_SPLITS, ceil(max_keys / min_keys), max(to_fill, ceil(max_keys / self.long_keys))), min_keys


@dataclass(frozen=True, slots=True)
class PrefillLaunch:
    """block_m: rows of a tile, queries times the heads that share a KV head. block_n: keys of a tile."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    value_dim: int = 512
    ahead: bool = False


MAX_SPLITS = 128


def decode_launch(head_dim: int, itemsize: int, num_heads_of_rows: int, max_keys: int) -> DecodeLaunch:
    block_n = max(16, min(64, 32768 // (head_dim * itemsize)))
    return DecodeLaunch(block_n, num_warps=4, num_stages=2)


def prefill_launch(head_dim: int, itemsize: int, windowed: bool) -> PrefillLaunch:
    if itemsize > 2:
        return PrefillLaunch(block_m=32, block_n=16, num_warps=4, num_stages=1)
    block_m = 128 if head_dim * itemsize <= 512 else 64
    block_n = max(16, min(64, 32768 // (head_dim * itemsize)))
    return PrefillLaunch(block_m, block_n, num_warps=8, num_stages=2)
