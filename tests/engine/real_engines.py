"""Engines on a tiny real model: by the paged forward or by transformers, on the CPU, on CUDA, or on the CPU as if it were CUDA."""

from dataclasses import replace
from pathlib import Path

import torch
from engine_fakes import RecordList, VirtualClock, loaded
from penalised_runs import VOCAB
from torch import Tensor

from inference_server.backends.paged_backend import PagedBackend
from inference_server.backends.torch_backend import TorchBackend
from inference_server.checkpoints.safetensors_reader import open_checkpoint
from inference_server.core.kv_layout import KVLayout
from inference_server.core.model_spec import ModelSpec
from inference_server.core.options import CacheOptions, EngineOptions, ModelOptions, SchedulerOptions
from inference_server.engine.engine import Engine
from inference_server.kv_cache.factory import create_cache
from inference_server.sampling.token_rows import Sampled, SamplingRows
from inference_server.sampling.token_sampler import TokenSampler
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler

Backend = PagedBackend | TorchBackend


def engine_on(backend: Backend, num_blocks: int, sink: RecordList, max_batch_size: int = 5, max_batched_tokens: int = 32) -> Engine:
    spec = backend.load()
    layout = KVLayout.from_num_blocks(spec.groups, 8, num_blocks)
    backend.allocate(layout)
    options = SchedulerOptions(max_batch_size=max_batch_size, max_batched_tokens=max_batched_tokens, prefill_chunk_size=12)
    scheduler = ContinuousBatchScheduler(create_cache(layout, CacheOptions()), options, supports_mixed=spec.supports_mixed)
    model = replace(loaded(scheduler=scheduler), backend=backend, spec=spec)
    engine = Engine(lambda: model, EngineOptions(), [sink], VirtualClock())
    engine.load()
    return engine


class OverlappingBackend(PagedBackend):
    """Works on the CPU as on CUDA: a step is sampled while the tokens of the one before it are not on the host."""

    def load(self) -> ModelSpec:
        return replace(super().load(), supports_overlap=True)


class DeviceSampling:
    """Samples only by what is enqueued on a device, here in Triton's interpreter."""

    capturable = None

    def __init__(self) -> None:
        from inference_server.sampling.device_token_sampler import DeviceTokenSampler

        self.sampler = DeviceTokenSampler(5, VOCAB, torch.device("cpu"))

    def __call__(self, logits: Tensor, rows: SamplingRows) -> Sampled:
        return Sampled(self.sampler(logits, rows))


def backend_of(name: str, folder: Path, max_batch_size: int = 5) -> Backend:
    device = "cuda" if name == "cuda" else "cpu"
    options = ModelOptions("tiny", None, folder, device=device, dtype="float32", max_batch_size=max_batch_size)
    match name:
        case "transformers":
            return TorchBackend(options, folder, TokenSampler(max_batch_size))
        case "overlapping":
            return OverlappingBackend(options, folder, open_checkpoint, DeviceSampling())
    return PagedBackend(options, folder, open_checkpoint, TokenSampler(max_batch_size))
