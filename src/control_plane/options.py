"""`FleetOptions`: what a fleet is made of, beside the server's own settings."""

from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """num_cpus, num_gpus: what Ray reserves for each replica; a process that reserves no CPU still uses one.

    max_replicas: if above `replicas`, Serve scales between the two, so that requests wait `target_queue_s` and KV pools are as full as
    `target_kv_pressure`; it acts once it has wanted more replicas for `scale_up_s` seconds, or fewer for `scale_down_s`.
    policy, beta, quiet_tokens, index_capacity: see `PrefixRequestRouter`. report_s: seconds between two reports of a replica.
    Raises ValueError, in one line, for a fleet that cannot be.
    """

    replicas: int = 1
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    max_replicas: int = 0
    target_queue_s: float = 1.0
    target_kv_pressure: float = 0.6
    scale_up_s: float = 10.0
    scale_down_s: float = 300.0
    policy: str = "prefix"
    beta: float = 1.0
    quiet_tokens: float = 4096
    index_capacity: int = 2**19
    report_s: float = 1.0

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ValueError("replicas: should be at least 1")
        for name in ("num_cpus", "num_gpus"):
            if not (isfinite(number := getattr(self, name)) and number >= 0):
                raise ValueError(f"{name}: should be a finite number from 0 on")
