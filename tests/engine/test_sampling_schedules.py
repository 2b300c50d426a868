"""Penalties, biases and masks through the engine on a tiny real model, with preemption, reused slots and cached prefixes.

Every request must get the tokens of a straight run: transformers' logits of the whole sequence, each changed by plain numbers.
"""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from engine_fakes import RecordList, VirtualClock, loaded, merged, run_dry
from penalised_runs import SEEDED, VOCAB, requests_of, straight_run, tiny_model
from torch import Tensor

from inference_server.backends.paged_backend import PagedBackend
from inference_server.backends.torch_backend import TorchBackend
from inference_server.checkpoints.safetensors_reader import open_checkpoint
from inference_server.core.kv_layout import KVLayout
from inference_server.core.model_spec import ModelSpec
from inference_server.core.options import CacheOptions, EngineOptions, ModelOptions, SchedulerOptions
from inference_server.core.request import FinishReason, ScheduledRequest
from inference_server.engine.engine import Engine
from inference_server.kv_cache.factory import create_cache
from inference_server.sampling.token_rows import Sampled, SamplingRows
from inference_server.sampling.token_sampler import TokenSampler
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler

pytest.importorskip("triton", reason="triton is not installed: its kernels exist on Linux only")

from inference_server.sampling.device_token_sampler import DeviceTokenSampler

Backend = PagedBackend | TorchBackend


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny_model().save_pretrained(path)
    return path


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
    """The way of CUDA on the CPU: a step is sampled while the tokens of the one before are not on the host."""

    def load(self) -> ModelSpec:
        return replace(super().load(), supports_overlap=True)


class DeviceSampling:
    """Only what is enqueued on a device, here in Triton's interpreter."""

    capturable = None

    def __init__(self) -> None:
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


@pytest.mark.parametrize("name", ["paged", "transformers", "overlapping", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_random_schedules_give_the_tokens_of_straight_runs(folder: Path, name: str) -> None:
    sink, requests = RecordList(), list(requests_of(Random(3), 24))
    if name == "overlapping":  # a search for a set takes long in the interpreter
        requests = [replace(r, sampling=replace(r.sampling, top_p=1.0)) for r in requests[:12]]
    with torch.inference_mode():
        model = tiny_model()
        expected = {r.request_id: straight_run(model, list(r.token_ids), r.sampling) for r in requests}
    engine = engine_on(backend_of(name, folder), num_blocks=14, sink=sink)
    for request in requests:
        engine.add(request)
    seen = {request_id: merged(deltas) for request_id, deltas in run_dry(engine).items()}
    assert {request_id: whole.token_ids for request_id, whole in seen.items()} == expected
    assert sum(record.num_preemptions for record in sink.requests) > 0
    assert sum(record.cached_tokens for record in sink.requests) > 0
    assert {whole.finish_reason for whole in seen.values()} == {FinishReason.STOP, FinishReason.LENGTH}


def test_a_seed_gives_the_same_tokens_alone_and_among_busy_neighbours(folder: Path) -> None:
    def tokens_among(number: int) -> list[int]:
        sink = RecordList()
        engine = engine_on(backend_of("paged", folder, 32), 400, sink, max_batch_size=32, max_batched_tokens=512)
        requests = list(requests_of(Random(number), number))
        requests.insert(number // 2, ScheduledRequest("mine", list(range(20, 33)), SEEDED, 100.0))
        for request in requests:
            engine.add(request)
        tokens = merged(run_dry(engine)["mine"]).token_ids
        assert max(step.num_rows for step in sink.steps) == number + 1
        return tokens

    assert tokens_among(0) == tokens_among(4) == tokens_among(31)
