"""An engine whose device does nothing, to measure the host: all of a CUDA backend but its copies, launches and graphs."""

import gc
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from inference_server.backends.cuda_graph_pool import GraphSizes
from inference_server.backends.paged_backend import PagedBackend
from inference_server.backends.staging import Returns
from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.core.model_spec import GenerationDefaults, ModelSpec
from inference_server.core.options import CacheOptions, EngineOptions, ModelOptions, SchedulerOptions, SinkOptions
from inference_server.engine.engine import Engine
from inference_server.engine.loaded_model import LoadedModel
from inference_server.kv_cache.factory import create_cache
from inference_server.observability.sinks import Sinks
from inference_server.sampling.device_sampler import DeviceSampler
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler
from inference_server.tokenization.base import TokenizerLike
from inference_server.tokenization.chat_template import ChatTemplate

MAX_ROWS, MAX_TOKENS, VOCAB_SIZE, BLOCK_SIZE = 256, 8192, 262_144, 16
MIXED = SchedulerOptions(MAX_ROWS, MAX_TOKENS)
GROUPS = (LayerGroup((0,), 1, 8, 2), LayerGroup((1, 2, 3, 4), 1, 8, 2, window=512))


class StepClock:
    """A clock that moves only when `now` is set, so that it stands still within a step."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Replays:
    """Takes the place of `CudaGraphPool` and computes nothing. words: [steps, rows], the ids that sampling rows get, step after step."""

    def __init__(self, ids: torch.Tensor, words: torch.Tensor) -> None:
        self._ids = ids
        self._words = itertools.cycle(words)

    def replay(self, key: Any) -> None:
        if isinstance(key, tuple):  # the graph of a choice: its variant and size
            self._ids.copy_(next(self._words))


def load_model(
    tokenizer: TokenizerLike,
    words: torch.Tensor,
    max_len: int,
    template: str = "",
    groups: tuple[LayerGroup, ...] = GROUPS,
    scheduling: SchedulerOptions = MIXED,
) -> LoadedModel:
    """Build what `PagedBackend` makes at load and in `allocate`, but without a model. words: see `Replays`."""
    model = ModelOptions("none", None, Path(), device="cpu", max_batch_size=MAX_ROWS, max_batched_tokens=MAX_TOKENS)
    blocks = MAX_ROWS * (max_len // BLOCK_SIZE + 2)
    backend: Any = PagedBackend(model, Path(), lambda folder: None, lambda logits, rows: None)  # type: ignore[arg-type,return-value]
    no_model = SimpleNamespace(drops_unsampled=True)
    backend._model = SimpleNamespace(model=no_model, dtype=torch.bfloat16, max_model_len=max_len, ops=None)
    backend._returns = Returns(MAX_ROWS, torch.device("cpu"))
    layout = KVLayout.from_num_blocks(groups, BLOCK_SIZE, blocks)
    backend._prepare(layout)
    runner = backend._runner
    runner._hidden = torch.zeros(MAX_ROWS, 1)
    runner._sizes = sizes = GraphSizes.choose(MAX_ROWS, MAX_TOKENS)
    runner._choice._sizes = sizes.rows
    runner._choice._capturable = DeviceSampler(MAX_ROWS, VOCAB_SIZE, torch.device("cpu"))
    runner._graphs = Replays(runner._choice._ids, words)
    options = CacheOptions()
    scheduler = ContinuousBatchScheduler(create_cache(layout, options), scheduling)
    spec = ModelSpec("none", VOCAB_SIZE, max_len, groups, "cpu", "bfloat16", 0, 0, supports_overlap=True)
    return LoadedModel(backend, scheduler, tokenizer, ChatTemplate(template, {}), spec, GenerationDefaults(temperature=0.0), max_len)


def create_engine(
    tokenizer: TokenizerLike,
    words: torch.Tensor,
    clock: StepClock,
    max_len: int,
    groups: tuple[LayerGroup, ...] = GROUPS,
    scheduling: SchedulerOptions = MIXED,
) -> Engine:
    """An engine that has loaded the model of `load_model`; see there."""
    sinks = tuple(Sinks.create("none", SinkOptions(), clock))

    def load() -> LoadedModel:
        return load_model(tokenizer, words, max_len, groups=groups, scheduling=scheduling)

    engine = Engine(load, EngineOptions(request_deadline_s=None), sinks, clock)
    engine.load()
    gc.collect()
    gc.freeze()
    return engine
