"""How the Triton kernels are launched: block sizes per operation and shape, and whether launches overlap.

`launch_table.json` holds what `scripts/bench/tune_triton_launch.py` measured, by the name of the card; for other cards and shapes the
caller has a default. Imports neither triton nor a kernel.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

TABLE_PATH = Path(__file__).with_name("launch_table.json")

Table = dict[str, dict[str, list[int] | None]]
"""card: {"operation NxK": fields of LaunchConfig, or null where the way without the kernel was faster}"""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """rows: output features of a tile. block_k: inputs of a tile. splits: programs that share a sum, each over its part of K.

    programs: how many take turns at the tiles, loading for the next while they finish one; 0 for one a tile.
    tokens: rows of x of a tile; 0 for all.
    """

    rows: int
    block_k: int
    num_warps: int
    num_stages: int = 1
    splits: int = 1
    programs: int = 0
    tokens: int = 0


def table_key(operation: str, n: int, k: int) -> str:
    return f"{operation} {n}x{k}"


def tuning(operation: str, n: int, k: int, device: torch.device, default: LaunchConfig | None = None) -> LaunchConfig | None:
    """What was fastest on this card for a weight [n, k]: None if the way without this kernel was, `default` if nothing was measured."""
    if device.type != "cuda":
        return default
    entries = _read_table().get(_card(device), {})
    key = table_key(operation, n, k)
    if key not in entries:
        return default
    fields = entries[key]
    return LaunchConfig(*fields) if fields else None


@cache
def overlaps_launches(device: torch.device) -> bool:
    """Whether a kernel may start while the one before it drains (programmatic dependent launch, from compute capability 9.0 on).

    Kernels then load weights at once and call `gdc_wait` before they read activations or write anything.
    """
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def _card(device: torch.device) -> str:
    return torch.cuda.get_device_name(device)


@cache
def _read_table() -> Table:
    table: Table = json.loads(TABLE_PATH.read_text(encoding="utf-8"))
    return table
