"""The prefix cache on the embedded model: what it saves when a prompt comes again, and that it changes no text."""

import time

import pytest

from inference_server.config import Settings
from inference_server.core.options import CacheOptions, EngineOptions, SchedulerOptions
from inference_server.core.outputs import OutputDelta
from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.engine import Engine
from inference_server.engine.model_loader import ModelLoader

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

NUM_PROMPT_TOKENS = 1000
FILLER = "The quick brown fox jumps over the lazy dog, and then the dog chases the fox around the old oak tree. "


def start_engine(*, enable_prefix_cache: bool) -> Engine:
    settings = Settings(_env_file=None)
    cache = CacheOptions(num_blocks=512, enable_prefix_cache=enable_prefix_cache)
    loader = ModelLoader(settings.model_options(), cache, SchedulerOptions(max_batch_size=4))
    engine = Engine(loader.load, EngineOptions())
    engine.load()
    return engine


def complete(engine: Engine, token_ids: list[int], max_tokens: int = 24) -> OutputDelta:
    """The whole greedy answer, with its usage."""
    engine.add(
        ScheduledRequest(
            f"{time.monotonic_ns()}", list(token_ids), SamplingParams(temperature=0.0, max_tokens=max_tokens), time.monotonic()
        )
    )
    whole = OutputDelta()
    while engine.has_work:
        for delta in engine.step().values():
            whole.merge(delta)
    return whole


@pytest.fixture(scope="module")
def engine() -> Engine:
    return start_engine(enable_prefix_cache=True)


@pytest.fixture(scope="module")
def prompt(engine: Engine) -> list[int]:
    assert engine.model is not None
    return engine.model.tokenizer.encode(FILLER * 60)[:NUM_PROMPT_TOKENS]


@pytest.mark.alone
def test_a_second_identical_prompt_starts_ten_times_sooner(engine: Engine, prompt: list[int]) -> None:
    complete(engine, prompt[:20][::-1])  # the first forwards warm the threads up
    first, second = complete(engine, prompt), complete(engine, prompt)
    assert first.usage is not None and second.usage is not None
    assert (first.usage.cached_tokens, second.usage.cached_tokens) == (0, (NUM_PROMPT_TOKENS - 1) // 16 * 16)
    assert first.usage.ttft_s is not None and second.usage.ttft_s is not None
    assert first.usage.ttft_s > 10 * second.usage.ttft_s, (first.usage, second.usage)
    assert engine.snapshot.cache.hit_tokens == second.usage.cached_tokens


def test_the_text_is_the_same_with_the_cache_and_without(engine: Engine, prompt: list[int]) -> None:
    without = start_engine(enable_prefix_cache=False)
    for length in (1000, 993, 700, 100):
        token_ids = prompt[:length] if length > 512 else prompt[:length] + prompt[3:30]
        plain, cached = complete(without, token_ids), complete(engine, token_ids)
        again = complete(engine, token_ids)
        assert plain.token_ids == cached.token_ids == again.token_ids
        assert plain.usage is not None and plain.usage.cached_tokens == 0
        assert again.usage is not None and again.usage.cached_tokens == (len(token_ids) - 1) // 16 * 16
