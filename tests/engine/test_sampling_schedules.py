"""Penalties, biases and masks through the engine on a tiny real model, with preemption, reused slots and cached prefixes.

Every request must get the tokens of a straight run: transformers' logits of the whole sequence, each changed by plain numbers.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from engine_fakes import RecordList, VirtualClock, loaded, merged, run_dry
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from inference_server.backends.paged_backend import PagedBackend
from inference_server.backends.torch_backend import TorchBackend
from inference_server.checkpoints.safetensors_reader import open_checkpoint
from inference_server.core.kv_layout import KVLayout
from inference_server.core.options import CacheOptions, EngineOptions, ModelOptions, SchedulerOptions
from inference_server.core.request import FinishReason, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.engine import Engine
from inference_server.kv_cache.factory import create_cache
from inference_server.sampling.sampler import Sampler
from inference_server.sampling.token_sampler import TokenSampler
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler

VOCAB, END = 128, 7
Backend = PagedBackend | TorchBackend


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(5)
    config = Gemma3TextConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=16,
        sliding_window_pattern=2,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    path = tmp_path_factory.mktemp("tiny")
    Gemma3ForCausalLM(config).save_pretrained(path)
    return path


def straight_run(model: Gemma3ForCausalLM, prompt: list[int], params: SamplingParams) -> list[int]:
    output: list[int] = []
    while len(output) < params.max_tokens:
        logits = model(torch.tensor([prompt + output])).logits[0, -1]
        for token in range(VOCAB):
            seen = output.count(token)
            if token in params.stop_token_ids and len(output) < params.min_tokens:
                logits[token] = -torch.inf
            logits[token] += dict(params.logit_bias).get(token, 0.0)
            if seen or token in prompt:
                logits[token] *= params.repetition_penalty if logits[token] <= 0 else 1 / params.repetition_penalty
            logits[token] -= params.frequency_penalty * seen + params.presence_penalty * min(seen, 1)
        output += Sampler()(logits.unsqueeze(0), [params], [len(prompt) + len(output)]).tolist()
        if output[-1] in params.stop_token_ids:
            break
    return output


def requests_of(random: Random, number: int) -> Iterator[ScheduledRequest]:
    beginning = [random.randrange(VOCAB) for _ in range(16)]
    for n in range(number):
        params = SamplingParams(
            temperature=random.choice([0.0, 0.8, 1.3]),
            top_p=random.choice([1.0, 0.9]),
            seed=random.randrange(1 << 30),
            presence_penalty=random.choice([0.0, 1.5]),
            frequency_penalty=random.choice([0.0, 0.7, -0.4]),
            repetition_penalty=random.choice([1.0, 1.4]),
            logit_bias=random.choice([(), ((END, 4.0), (3, -5.0))]),
            stop_token_ids=frozenset({END}),
            min_tokens=random.choice([0, 6]),
            max_tokens=random.randrange(8, 30),
        )
        prompt = beginning[: random.choice([0, 16])] + [random.randrange(VOCAB) for _ in range(random.randrange(1, 30))]
        yield ScheduledRequest(f"r{n}", prompt, params, 100.0 + n / 100)


def engine_on(backend: Backend, num_blocks: int, sink: RecordList) -> Engine:
    spec = backend.load()
    layout = KVLayout.from_num_blocks(spec.groups, 8, num_blocks)
    backend.allocate(layout)
    options = SchedulerOptions(max_batch_size=5, max_batched_tokens=32, prefill_chunk_size=12)
    scheduler = ContinuousBatchScheduler(create_cache(layout, CacheOptions()), options, supports_mixed=spec.supports_mixed)
    model = replace(loaded(scheduler=scheduler), backend=backend, spec=spec)
    engine = Engine(lambda: model, EngineOptions(), [sink], VirtualClock())
    engine.load()
    return engine


def backends(folder: Path) -> dict[str, Backend]:
    options = ModelOptions("tiny", None, folder, device="cpu", dtype="float32", max_batch_size=5)
    return {
        "paged": PagedBackend(options, folder, open_checkpoint, TokenSampler()),
        "transformers": TorchBackend(options, folder, TokenSampler()),
    }


@pytest.mark.parametrize("name", ["paged", "transformers"])
def test_random_schedules_give_the_tokens_of_straight_runs(folder: Path, name: str) -> None:
    sink, requests = RecordList(), list(requests_of(Random(3), 24))
    model = Gemma3ForCausalLM.from_pretrained(folder).eval()
    with torch.inference_mode():
        expected = {r.request_id: straight_run(model, list(r.token_ids), r.sampling) for r in requests}
    engine = engine_on(backends(folder)[name], num_blocks=14, sink=sink)
    for request in requests:
        engine.add(request)
    seen = {request_id: merged(deltas) for request_id, deltas in run_dry(engine).items()}
    assert {request_id: whole.token_ids for request_id, whole in seen.items()} == expected
    assert sum(record.num_preemptions for record in sink.requests) > 0
    assert sum(record.cached_tokens for record in sink.requests) > 0
    assert {whole.finish_reason for whole in seen.values()} == {FinishReason.STOP, FinishReason.LENGTH}


def test_a_seed_gives_the_same_tokens_alone_and_among_neighbours(folder: Path) -> None:
    params = SamplingParams(temperature=1.0, seed=11, presence_penalty=0.8, frequency_penalty=0.3, repetition_penalty=1.2, max_tokens=30)

    def tokens_among(number: int) -> list[int]:
        engine = engine_on(backends(folder)["paged"], num_blocks=200, sink=RecordList())
        for request in requests_of(Random(number), number):
            engine.add(request)
        engine.add(ScheduledRequest("mine", list(range(20, 33)), params, 100.0))
        return merged(run_dry(engine)["mine"]).token_ids

    assert tokens_among(0) == tokens_among(4) == tokens_among(31)
