"""Launch parameters of the Triton attention kernels: values measured per head_dim, and a default for shapes nobody measured.

Pure arithmetic without torch or Triton. The measured values come from `scripts/bench/attention_kernels.py`; `docs/log.md` has the run.
"""

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class DecodeLaunch:
    """block_n: keys of a tile. programs: how many are wanted in all. min_keys: the fewest keys worth a program of their own."""

    block_n: int
    num_warps: int
    num_stages: int
    programs: int
    min_keys: int

    def splits(self, num_heads_of_rows: int, max_keys: int) -> tuple[int, int]:
        """How many programs each KV head of each row gets, and the fewest keys of one, for rows of at most max_keys keys."""
        wanted = ceil(self.programs / num_heads_of_rows)
        if wanted == 1:  # enough rows to fill the card: cut only long ones, so that one of them does not outlast the rest
            return max(1, min(MAX_SPLITS, max_keys // LONG_KEYS)), LONG_KEYS
        return max(1, min(MAX_SPLITS, wanted, ceil(max_keys / self.min_keys))), self.min_keys


@dataclass(frozen=True, slots=True)
class PrefillLaunch:
    """block_m: rows of a tile, queries times the heads that share a KV head. block_n: keys of a tile."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


MAX_SPLITS = 64
LONG_KEYS = 1024


def decode_launch(head_dim: int, itemsize: int, num_heads_of_rows: int, max_keys: int) -> DecodeLaunch:
    block_n = max(16, min(64, 32768 // (head_dim * itemsize)))
    return DecodeLaunch(block_n, num_warps=4, num_stages=3, programs=264, min_keys=64)


def prefill_launch(head_dim: int, itemsize: int, windowed: bool) -> PrefillLaunch:
    block_m = 128 if head_dim * itemsize <= 512 else 64
    block_n = max(16, min(64, 32768 // (head_dim * itemsize)))
    return PrefillLaunch(block_m, block_n, num_warps=8, num_stages=2)
