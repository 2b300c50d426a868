"""Penalties, biases and masks through the engine on a tiny real model, with preemption, reused slots and cached prefixes.

Every request must get the tokens of a straight run: transformers' logits of the whole sequence, each changed by plain numbers.
"""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from engine_fakes import RecordList, merged, run_dry
from penalised_runs import SEEDED, requests_of, straight_run, tiny_model
from real_engines import backend_of, engine_on

from inference_server.core.request import FinishReason, ScheduledRequest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny_model().save_pretrained(path)
    return path


@pytest.mark.parametrize("name", ["paged", "transformers", "overlapping", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_random_schedules_give_the_tokens_of_straight_runs(folder: Path, name: str) -> None:
    sink, requests = RecordList(), list(requests_of(Random(3), 24))
    if name == "overlapping":
        pytest.importorskip("triton", reason="triton is not installed: its kernels exist on Linux only")
        # Searching the set of a top-p takes long in the interpreter.
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
