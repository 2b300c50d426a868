"""Several choices on the embedded model: what they cost in KV, and that each has the text of a separate request.

It runs in float32: a child computes the last prompt token in a step of its own, and in bfloat16 another shape rounds differently.
"""

import time

import pytest
from engine_fakes import merged, run_dry

from inference_server.config import Settings
from inference_server.core.generation import GenerationRequest
from inference_server.core.options import CacheOptions, EngineOptions, SchedulerOptions
from inference_server.core.outputs import OutputDelta
from inference_server.core.request import RequestStatus, ScheduledRequest
from inference_server.engine.engine import Engine
from inference_server.engine.input_processor import InputProcessor
from inference_server.engine.model_loader import ModelLoader

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

TEXT = "User: Name a city that you would like to see, and say why.\nAssistant:"
NUM_CHOICES = 4


@pytest.fixture(scope="module")
def engine() -> Engine:
    cache = CacheOptions(num_blocks=64, enable_prefix_cache=False)
    loader = ModelLoader(Settings(_env_file=None, dtype="float32").model_options(), cache, SchedulerOptions(max_batch_size=8))
    engine = Engine(loader.load, EngineOptions(admission_deadline_s=None, request_deadline_s=None))
    engine.load()
    return engine


def choices_of(engine: Engine, **fields: float) -> list[ScheduledRequest]:
    assert engine.model is not None
    asked = GenerationRequest(TEXT, time.monotonic(), n=NUM_CHOICES, max_tokens=10, **fields)  # type: ignore[arg-type]
    return InputProcessor(engine.model, EngineOptions()).choices(asked)


def texts(engine: Engine, choices: list[ScheduledRequest]) -> list[str]:
    seen = run_dry(engine)
    return [merged(seen.get(choice.request_id, [OutputDelta()])).text for choice in choices]


def test_greedy_choices_are_equal_and_seeded_ones_differ(engine: Engine) -> None:
    engine.add(*(greedy := choices_of(engine, temperature=0.0)))
    assert len(set(texts(engine, greedy))) == 1
    engine.add(*(drawn := choices_of(engine, temperature=1.0, seed=7)))
    assert len(set(texts(engine, drawn))) == NUM_CHOICES


def test_a_choice_has_the_text_of_a_request_of_its_own(engine: Engine) -> None:
    engine.add(*(group := choices_of(engine, temperature=1.0, seed=7)))
    forked = texts(engine, group)
    alone = []
    for choice in choices_of(engine, temperature=1.0, seed=7):
        engine.add(choice)
        alone += texts(engine, [choice])
    assert forked == alone


def test_the_children_take_one_block_each(engine: Engine) -> None:
    engine.add(*(group := choices_of(engine, temperature=1.0, seed=7)))
    engine.step()
    alone = engine.snapshot.cache.used_bytes
    while any(choice.status is not RequestStatus.RUNNING for choice in group):
        engine.step()
    forked = engine.snapshot.cache.used_bytes
    prompt_blocks = -(-len(group[0].token_ids) // 16)
    assert forked - alone <= NUM_CHOICES * alone / prompt_blocks
    texts(engine, group)
