"""`FleetOptions`: what a fleet is made of, beside the server's own settings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """num_cpus, num_gpus: what Ray reserves for each replica; a process that reserves no CPU still uses one.

    policy, beta, quiet_tokens, index_capacity: see `PrefixRequestRouter`. report_s: seconds between two reports of a replica.
    max_replicas: above `replicas`, and Ray scales between the two by what replicas report. queue_s, kv_pressure: what it aims at.
    """

    replicas: int = 1
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    policy: str = "prefix"
    beta: float = 1.0
    quiet_tokens: float = 4096
    index_capacity: int = 2**19
    report_s: float = 1.0
