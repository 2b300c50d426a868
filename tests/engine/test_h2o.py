"""Attention mass, from a real forward through the engine to evictions: its sum, and that no text depends on it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_fakes import RecordList, VirtualClock, loaded, run_dry
from tiny_models import gemma3

from inference_server.backends.block_mass import COPY_EVERY, HALF_LIFE, BlockMass
from inference_server.backends.factory import create_backend
from inference_server.backends.paged_backend import PagedBackend, PagedStep
from inference_server.checkpoints.safetensors_reader import open_checkpoint
from inference_server.core.errors import ModelLoadError
from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.core.options import CacheOptions, EngineOptions, ModelOptions, SchedulerOptions
from inference_server.core.plan import BlockCopy, StepPlan, StepResult
from inference_server.core.request import BlockTable, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.engine import Engine
from inference_server.kv_cache.factory import create_cache
from inference_server.sampling.token_sampler import TokenSampler
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler

HEADS, FULL_LAYERS, BLOCK = 2, 2, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gemma3")
    layer_types = ["sliding_attention", "full_attention"] * FULL_LAYERS
    gemma3(vocab_size=258, num_attention_heads=HEADS, layer_types=layer_types, num_hidden_layers=4, sliding_window=8).save_pretrained(path)
    return path


class RecordingBackend(PagedBackend):
    """Keeps every mass that it returns."""

    def collect(self, step: PagedStep) -> StepResult:
        result = super().collect(step)
        self.masses = [*getattr(self, "masses", []), result.block_mass]
        return result


def engine_on(folder: Path, policy: str, num_blocks: int) -> tuple[Engine, RecordingBackend, RecordList]:
    options = ModelOptions("tiny", None, folder, device="cpu", dtype="float32", max_batch_size=4, block_mass=policy == "h2o")
    backend, sink = RecordingBackend(options, folder, open_checkpoint, TokenSampler(64)), RecordList()
    spec = backend.load()
    layout = KVLayout.from_num_blocks(spec.groups, BLOCK, num_blocks)
    backend.allocate(layout)
    scheduling = SchedulerOptions(max_batch_size=4, max_batched_tokens=32)
    scheduler = ContinuousBatchScheduler(create_cache(layout, CacheOptions(eviction_policy=policy)), scheduling)
    model = replace(loaded(scheduler=scheduler), backend=backend, spec=spec)
    engine = Engine(lambda: model, EngineOptions(), [sink], VirtualClock())
    engine.load()
    backend.masses = []
    return engine, backend, sink


def request_of(name: str, prompt: list[int], max_tokens: int) -> ScheduledRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    return ScheduledRequest(name, prompt, sampling, 100.0)


def test_each_decode_step_adds_one_for_every_head_and_full_layer(folder: Path) -> None:
    engine, backend, _ = engine_on(folder, "h2o", num_blocks=40)
    backend._block_mass.values.zero_()  # the warm-up has left mass in the null block
    backend._block_mass._num_steps = 0
    engine.add(request_of("r", list(range(1, 11)), 40))
    run_dry(engine)
    masses = [mass for mass in backend.masses if mass is not None]
    # The first step computes the prompt, so it is no decode.
    assert [step for step, mass in enumerate(backend.masses, 1) if mass is not None] == [COPY_EVERY, 2 * COPY_EVERY]
    a_step = HEADS * FULL_LAYERS
    assert sum(masses[0]) == pytest.approx(a_step * (COPY_EVERY - 1), rel=1e-4)
    assert sum(masses[1]) == pytest.approx(a_step * ((COPY_EVERY - 1) * 0.5 ** (1 / HALF_LIFE) + COPY_EVERY), rel=1e-4)


def test_no_mass_is_kept_for_another_policy(folder: Path) -> None:
    engine, backend, _ = engine_on(folder, "lru", num_blocks=40)
    engine.add(request_of("r", list(range(1, 11)), 40))
    run_dry(engine)
    assert backend._block_mass is None and set(backend.masses) == {None}


def test_the_tokens_are_the_same_under_every_policy_while_blocks_are_evicted(folder: Path) -> None:
    answers = []
    for policy in ("lru", "h2o"):
        engine, _, sink = engine_on(folder, policy, num_blocks=24)
        requests = [request_of(f"r{n}", [7, 3, 9, 1] * 3 + [n % 5] * (n % 7 + 1), 30) for n in range(20)]
        for request in requests:
            engine.add(request)
        run_dry(engine)
        assert engine.snapshot.cache.evicted_blocks > 20 and sum(record.cached_tokens for record in sink.requests) > 50
        answers.append([request.output_token_ids for request in requests])
    assert answers[0] == answers[1]


def test_mass_starts_anew_where_a_blocks_first_token_is_written_or_copied() -> None:
    mass = BlockMass(KVLayout((LayerGroup((0,), 1, 1, 1),), BLOCK, num_slabs=12), torch.device("cpu"))
    mass.values.fill_(1.0)
    plan = StepPlan(0, block_copies=[BlockCopy(0, 9, 10)])
    for start, count, blocks in ((7, 1, [1, 2]), (8, 1, [3, 4, 5]), (3, 7, [6, 7, 8])):
        plan.add(ScheduledRequest("r", [0] * 20, SamplingParams(), 0.0, block_tables=[BlockTable(blocks)]), start, count, False)
    mass.clear_reused(plan)
    assert mass.values.tolist() == [1, 1, 1, 1, 1, 0, 1, 0, 0, 1, 0, 1]


def test_a_backend_that_cannot_measure_attention_says_so(folder: Path) -> None:
    with pytest.raises(ModelLoadError, match="EVICTION_POLICY=h2o"):
        create_backend(ModelOptions("tiny", None, folder, backend="hf", block_mass=True), folder)
