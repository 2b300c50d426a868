"""One frozen option dataclass for each part; `config.Settings` fills them. No part ever sees `Settings`."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from inference_server.core.prefix_journal import PrefixJournal

SLOW_CHUNK_TOKENS = 512  # whoever comes waits for the end of a step, which on a CPU takes about a second for so many tokens


class PrefillMode(StrEnum):
    """How the token budget of a step is shaped. `mixed` lets decodes and prefill chunks share one forward."""

    MONOLITHIC = "monolithic"
    CHUNKED = "chunked"
    BATCHED = "batched"
    MIXED = "mixed"


class PolicyName(StrEnum):
    """Who is served next: whoever came first, or the client that has had the least service."""

    FCFS = "fcfs"
    FAIR = "fair"


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model, and how the backend runs it. backend, device and dtype may be "auto".

    quantization: "none" or "int8". load_format: "dummy" for random weights. max_batch_size, max_batched_tokens: rows and tokens of the
    largest step. max_model_len: None for the model's own. cuda_graph_sizes: rows of the steps to capture; empty for the usual ones, (0,)
    for none. ple_offload: embeddings for every layer stay in the host's memory. torch_compile: what our kernels leave
    to PyTorch. block_mass: measure attention by block. profiler_ranges: mark the phases of steps for profilers.
    """

    model_name: str
    model_revision: str | None
    cache_dir: Path
    backend: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    quantization: str = "none"
    load_format: str = "auto"
    max_batch_size: int = 64
    max_batched_tokens: int = 2048
    max_model_len: int | None = None
    cuda_graph_sizes: tuple[int, ...] = ()
    ple_offload: bool = False
    torch_compile: bool = False
    block_mass: bool = False
    profiler_ranges: bool = False


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """num_blocks: KV of that many blocks for all layers; None sizes the arena by memory_fraction of what is free.

    enable_prefix_cache: keep the KV of sequences for later ones. eviction_policy: what of it goes first, "lru", "sink_lru"
    or "h2o", which needs a backend with `ModelOptions.block_mass`. journal: where the prefix cache writes down what comes and goes, for
    a router to follow.
    """

    block_size: int = 16
    num_blocks: int | None = None
    memory_fraction: float = 0.9
    max_active_tokens: int | None = None
    enable_prefix_cache: bool = True
    eviction_policy: str = "lru"
    journal: PrefixJournal | None = None


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """Limits of one step. Budgets are in tokens.

    prefill_chunk_size: of one prompt in one step; None for no limit but that of the step.
    unnoticed_itl_ms: a time between tokens, in milliseconds, that prompts beside decoding requests may always take up.
    """

    max_batch_size: int = 64
    max_batched_tokens: int = 2048
    prefill_mode: PrefillMode = PrefillMode.MIXED
    prefill_chunk_size: int | None = None
    unnoticed_itl_ms: float = 20.0
    scheduling_policy: PolicyName = PolicyName.FAIR

    def on(self, device: str) -> "SchedulerOptions":
        """With a limit for chunks of prompts where a device needs one and none is named."""
        if self.prefill_chunk_size is not None or device.startswith("cuda"):
            return self
        return replace(self, prefill_chunk_size=SLOW_CHUNK_TOKENS)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Limits of the queue and of time. Deadlines are seconds from arrival; None means no limit.

    stall_after_s: how long a step may take, on top of what its tokens take at the measured pace, before the server gives itself up.
    default_max_tokens: for chat and /generate when the request names none.
    check_integrity: recount the books of scheduler and cache whenever there is nothing left to do; what is off ends the engine.
    """

    max_queue_size: int = 256
    admission_deadline_s: float | None = 60.0
    request_deadline_s: float | None = 600.0
    default_max_tokens: int = 512
    stall_after_s: float = 60.0
    check_integrity: bool = False


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where the engine's records go beside the metrics. None: nowhere. otlp_endpoint: the base URL of a collector."""

    telemetry_dir: Path | None = None
    timeline_dir: Path | None = None
    otlp_endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """What the HTTP layer needs to know. api_keys: empty for a server that asks for none.

    rate_limit_rpm, rate_limit_tpm: generations and tokens a minute, None for no limit.
    """

    served_model_name: str
    cors_origins: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    metrics_key: str | None = field(default=None, repr=False)
    rate_limit_rpm: int | None = None
    rate_limit_tpm: int | None = None
    max_header_bytes: int = 32 * 1024
    max_body_bytes: int = 4 * 1024 * 1024
    body_deadline_s: float = 60.0
    ping_interval_s: float = 15.0
