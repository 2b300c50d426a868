"""Settings: every knob of the server, from CLI flags, the environment or `.env`, validated once and never changed.

A flag wins over an environment variable, which wins over `.env`, which wins over the default. Nothing else in the project reads the
environment, and no other part receives `Settings`: each is handed the option dataclass of `core.options` that this module fills for it.
The fields below are the one source of `.env.example` and of the README's table (`scripts/check_settings.py --write`).
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, FilePath, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from inference_server.core.options import (
    ApiOptions,
    CacheOptions,
    EngineOptions,
    ModelOptions,
    PolicyName,
    PrefillMode,
    SchedulerOptions,
    SinkOptions,
)
from inference_server.core.prefix_journal import PrefixJournal

EMBEDDED_MODEL = "embedded"


class Settings(BaseSettings):
    """The server's settings. A flag beats the environment variable of its name (MAX_BATCH_SIZE), which beats `.env`."""  # --help says so

    model_config = SettingsConfigDict(
        frozen=True,
        extra="ignore",
        env_file=".env",
        env_ignore_empty=True,
        hide_input_in_errors=True,
        allow_inf_nan=False,
        cli_prog_name="python -m inference_server",
        cli_kebab_case=True,
        cli_exit_on_error=False,
        cli_hide_none_type=True,
        cli_parse_none_str="unset",
    )

    model_name: str = Field(EMBEDDED_MODEL, description="`embedded` (Gemma 3 270M), a folder, a .gguf file or a Hugging Face id")
    model_revision: str | None = Field(None, description="Branch, tag or commit of a Hugging Face id")
    served_model_name: str | None = Field(None, description="Name that clients use for the model; unset: MODEL_NAME")
    model_cache_dir: Path | None = Field(
        None, description="Where converted weights are kept; unset: inference-server in the user's cache folder"
    )
    backend: Literal["auto", "custom", "custom-cuda", "hf"] = Field(
        "auto",
        description="auto, custom (hand-written forward), custom-cuda (on CUDA or not at all) or hf (any transformers causal LM)",
    )
    device: str = Field(
        "auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", description="auto (CUDA, then MPS, then CPU), cpu, mps, cuda or cuda:N"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="auto, float32, bfloat16 or float16")
    quantization: Literal["none", "int8"] = Field("none", description="none, or int8: linear layers in int8, scaled by output feature")
    load_format: Literal["auto", "dummy"] = Field("auto", description="auto (real weights) or dummy (random weights)")
    chat_template: FilePath | None = Field(None, description="Jinja file that replaces the model's own chat template")
    max_model_len: int | None = Field(None, gt=1, description="Longest prompt plus output in tokens; unset: the model's own limit")
    max_batch_size: int = Field(64, gt=0, le=1024, description="Most requests in one forward")
    max_batched_tokens: int = Field(2048, gt=0, le=2**20, description="Most tokens in one forward, prefill and decode together")
    max_active_kv_tokens: int | None = Field(None, gt=0, description="Most tokens of KV held by running requests; unset: all of the pool")
    max_queue_size: int = Field(256, gt=0, description="Most waiting requests; beyond it new ones get 429")
    admission_deadline_s: float = Field(60.0, gt=0, description="Longest wait for a slot in seconds; then 429")
    request_deadline_s: float = Field(600.0, gt=0, description="Longest life of a request in seconds; then 504 or `timeout`")
    stall_after_s: float = Field(
        60.0,
        gt=0,
        description="How long a step may take in seconds, on top of what its tokens take at the measured pace; then the server exits",
    )
    default_max_tokens: int = Field(512, gt=0, description="Output limit of chat and /generate if the request names none")
    prefill_mode: Literal["monolithic", "chunked", "batched", "mixed"] = Field(
        "mixed", description="monolithic, chunked, batched or mixed (prefill chunks and decodes in one forward)"
    )
    prefill_chunk_size: int | None = Field(
        None, gt=0, description="Most prompt tokens of one request in one forward; unset: on CUDA MAX_BATCHED_TOKENS, else 512"
    )
    unnoticed_itl_ms: float = Field(
        20.0, ge=0, description="Prompts may double the time between others' tokens, or raise it to this if that is more; 0: only double"
    )
    scheduling_policy: Literal["fair", "fcfs"] = Field(
        "fair", description="fair (equal shares between clients) or fcfs (first come, first served)"
    )
    eviction_policy: Literal["lru", "sink_lru", "h2o"] = Field(
        "lru", description="Which cached prefixes are evicted first: lru, sink_lru (starts of prompts last) or h2o (the least attended to)"
    )
    kv_cache_block_size: int = Field(16, gt=0, le=256, description="Tokens per KV block, a power of two")
    kv_cache_num_blocks: int | None = Field(None, gt=1, lt=2**31, description="Blocks of the KV pool; unset: by KV_CACHE_MEMORY_FRACTION")
    kv_cache_memory_fraction: float = Field(0.9, gt=0, le=1, description="Share of the backend's free memory that the KV pool takes")
    enable_prefix_cache: bool = Field(True, description="Reuse the KV of prompt prefixes that were computed before")
    custom_backend_compile: bool = Field(
        False, description="Let torch.compile fuse what our kernels leave to PyTorch (BACKEND=custom-cuda; same values, slower start)"
    )
    cuda_graph_sizes: Annotated[tuple[Annotated[int, Field(ge=0)], ...], NoDecode] = Field(
        (), description="Batch sizes to capture as CUDA graphs, comma separated; unset: 1 to 32, then every 8, then every 16; 0: none"
    )
    ple_offload: bool = Field(False, description="On CUDA, keep Gemma 4's per-layer embeddings in pinned host memory (custom backend)")
    check_integrity: bool = Field(False, description="Debugging: recount all KV blocks when idle, and stop the engine if a count is off")
    log_format: Literal["text", "json"] = Field("text", description="text or json (one object a line)")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="debug, info, warning or error")
    telemetry_dir: Path | None = Field(None, description="Folder for a SQLite file per run, with a row per request; unset: none")
    timeline_dir: Path | None = Field(
        None, description="Folder for JSON lines of what each step decided and did; also marks steps for profilers; unset: none"
    )
    otlp_endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s/]+\S*$",
        description="OpenTelemetry collector that gets a span for each request, as http://host:4318 (extra `otel`); unset: none",
    )
    api_keys: Annotated[tuple[str, ...], NoDecode] = Field(
        (), repr=False, description="API keys, comma separated; clients must send one as a bearer token; unset: open"
    )
    metrics_key: str | None = Field(None, repr=False, description="Bearer token that /metrics asks for; unset: open")
    rate_limit_rpm: int | None = Field(
        None, gt=0, description="Generations a minute for each API key, or for each address if there are no keys; unset: no limit"
    )
    rate_limit_tpm: int | None = Field(
        None, gt=0, description="Tokens a minute for each API key, counting computed prompt tokens and output; unset: no limit"
    )
    enable_simulator: bool | None = Field(None, description="Serve /simulate/*; unset: only if there are no API_KEYS")
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Origins that browsers may call from, comma separated; unset: none"
    )
    drain_timeout_s: float = Field(30.0, ge=0, description="How long a stopping server lets running requests finish, in seconds")
    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on; 0.0.0.0 for every interface")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 for any free one")

    @classmethod
    def from_cli(cls, argv: Sequence[str] = ()) -> Self:
        """Settings from `argv` (without the program's name) over environment and `.env`. Only for a process's entry point.

        `--help` prints every flag and exits 0. A flag that does not exist or a bad value ends the process: one line on stderr, exit code 2.
        """
        try:
            return cls(_cli_parse_args=list(argv))
        except (SettingsError, ValidationError) as error:
            sys.stderr.write(f"inference-server: {error_line(error)}\n")
            raise SystemExit(2) from None

    @property
    def cache_dir(self) -> Path:
        """Folder of converted weights: MODEL_CACHE_DIR, else `inference-server` under XDG_CACHE_HOME or ~/.cache."""
        if self.model_cache_dir is not None:
            return self.model_cache_dir.expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "inference-server"

    def model_options(self) -> ModelOptions:
        """What the backend runs, and how."""
        return ModelOptions(
            model_name=self.model_name,
            model_revision=self.model_revision,
            cache_dir=self.cache_dir,
            backend=self.backend,
            device=self.device,
            dtype=self.dtype,
            quantization=self.quantization,
            load_format=self.load_format,
            max_batch_size=self.max_batch_size,
            max_batched_tokens=self.max_batched_tokens,
            max_model_len=self.max_model_len,
            cuda_graph_sizes=self.cuda_graph_sizes,
            ple_offload=self.ple_offload,
            torch_compile=self.custom_backend_compile,
            block_mass=self.enable_prefix_cache and self.eviction_policy == "h2o",
            profiler_ranges=self.timeline_dir is not None,
        )

    def cache_options(self, journal: PrefixJournal | None = None) -> CacheOptions:
        """The size of the KV pool, and how it is used."""
        return CacheOptions(
            block_size=self.kv_cache_block_size,
            num_blocks=self.kv_cache_num_blocks,
            memory_fraction=self.kv_cache_memory_fraction,
            max_active_tokens=self.max_active_kv_tokens,
            enable_prefix_cache=self.enable_prefix_cache,
            eviction_policy=self.eviction_policy,
            journal=journal,
        )

    def scheduler_options(self) -> SchedulerOptions:
        """The limits of one step."""
        return SchedulerOptions(
            max_batch_size=self.max_batch_size,
            max_batched_tokens=self.max_batched_tokens,
            prefill_mode=PrefillMode(self.prefill_mode),
            prefill_chunk_size=self.prefill_chunk_size,
            unnoticed_itl_ms=self.unnoticed_itl_ms,
            scheduling_policy=PolicyName(self.scheduling_policy),
        )

    def engine_options(self) -> EngineOptions:
        """The limits of the queue and of time."""
        return EngineOptions(
            max_queue_size=self.max_queue_size,
            admission_deadline_s=self.admission_deadline_s,
            request_deadline_s=self.request_deadline_s,
            stall_after_s=self.stall_after_s,
            default_max_tokens=self.default_max_tokens,
            check_integrity=self.check_integrity,
        )

    def sink_options(self) -> SinkOptions:
        """Where the engine's records go."""
        return SinkOptions(telemetry_dir=self.telemetry_dir, timeline_dir=self.timeline_dir, otlp_endpoint=self.otlp_endpoint)

    @property
    def has_simulator(self) -> bool:
        """Whether /simulate/* is served: as ENABLE_SIMULATOR says; if that is unset, only if there are no keys."""
        return not self.api_keys if self.enable_simulator is None else self.enable_simulator

    def api_options(self) -> ApiOptions:
        """What the HTTP layer needs to know."""
        return ApiOptions(
            served_model_name=self.served_model_name or self.model_name,
            cors_origins=self.cors_origins,
            api_keys=self.api_keys,
            metrics_key=self.metrics_key,
            rate_limit_rpm=self.rate_limit_rpm,
            rate_limit_tpm=self.rate_limit_tpm,
        )

    @field_validator("api_keys", "cors_origins", "cuda_graph_sizes", mode="before")
    @classmethod
    def _split_commas(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("log_level", mode="before")
    @classmethod
    def _lower(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @field_validator("api_keys", "metrics_key")
    @classmethod
    def _fit_for_a_header(cls, value: tuple[str, ...] | str | None) -> tuple[str, ...] | str | None:
        keys = (value,) if isinstance(value, str) else value or ()
        if not all(key.isascii() and key.isprintable() and " " not in key for key in keys):
            raise ValueError("Keys are printable ASCII without spaces")
        return value

    @field_validator("kv_cache_block_size")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("Input should be a power of two")
        return value

    @model_validator(mode="after")
    def _compiles_what_it_can(self) -> Self:
        if self.custom_backend_compile and self.backend != "custom-cuda":
            raise ValueError("CUSTOM_BACKEND_COMPILE needs BACKEND=custom-cuda: it compiles what is between our CUDA kernels")
        if self.custom_backend_compile and (self.quantization != "none" or self.ple_offload):
            raise ValueError("CUSTOM_BACKEND_COMPILE fuses lookups, which QUANTIZATION=int8 and PLE_OFFLOAD leave to kernels of their own")
        return self

    @model_validator(mode="after")
    def _tokens_are_counted_by_key(self) -> Self:
        if self.rate_limit_tpm is not None and not self.api_keys:
            raise ValueError("RATE_LIMIT_TPM needs API_KEYS: tokens are counted by key")
        return self

    @model_validator(mode="after")
    def _batch_fits_its_tokens(self) -> Self:
        if self.max_batched_tokens < self.max_batch_size:
            raise ValueError("MAX_BATCHED_TOKENS should be at least MAX_BATCH_SIZE: every running request computes one token a step")
        return self


def as_text(value: object) -> str:
    """A setting's value as one writes it in the environment; the empty string when it is unset."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


def error_line(error: SettingsError | ValidationError) -> str:
    """The first problem of `error` in one line that names the setting. It never repeats the value, which may be a secret."""
    if isinstance(error, SettingsError):
        return str(error).removeprefix("error parsing CLI: ").splitlines()[0]
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    return f"{str(first['loc'][0]).upper()}: {message}" if first["loc"] else message
