"""Random schedules through the real engine: every request gets the tokens of transformers, whatever happens beside it."""

import time
from pathlib import Path
from random import Random

import pytest
import torch
from tiny_models import save_tiny

from inference_server.backends.paged_backend import PagedBackend
from inference_server.checkpoints.safetensors_reader import open_checkpoint
from inference_server.core.kv_layout import KVLayout
from inference_server.core.model_spec import GenerationDefaults
from inference_server.core.options import CacheOptions, EngineOptions, ModelOptions, PrefillMode, SchedulerOptions
from inference_server.core.request import FinishReason, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.engine import Engine
from inference_server.engine.loaded_model import LoadedModel
from inference_server.kv_cache.factory import create_cache
from inference_server.sampling.token_sampler import TokenSampler
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler
from inference_server.tokenization.chat_template import ChatTemplate
from inference_server.tokenization.tokenizer import ByteTokenizer

MAX_TOKENS = 40
PROMPTS = [[(11 * i + 7 * n) % 500 + 1 for i in range(n)] for n in (1, 3, 8, 15, 16, 17, 30, 44, 60, 75)]
PROMPTS += [[*PROMPTS[-1][:48], 9, n] for n in range(4)]  # share a prefix


class Rig:
    """One model on the device, and a new scheduler and engine for each schedule. num_preempted: over all schedules."""

    def __init__(self, folder: Path, device: str, num_blocks: int) -> None:
        options = ModelOptions("tiny", None, folder, device=device, dtype="float32", max_batch_size=8, max_batched_tokens=64)
        self.backend = PagedBackend(options, folder, open_checkpoint, TokenSampler(8))
        self.spec = self.backend.load()
        self.layout = KVLayout.from_num_blocks(self.spec.groups, 4, num_blocks)
        self.backend.allocate(self.layout)
        self.num_preempted = 0

    def engine(self, mode: PrefillMode) -> Engine:
        scheduler = ContinuousBatchScheduler(create_cache(self.layout, CacheOptions()), SchedulerOptions(8, 64, mode, 20))
        defaults = GenerationDefaults(temperature=0.0)
        template = ChatTemplate("", {})
        model = LoadedModel(self.backend, scheduler, ByteTokenizer(), template, self.spec, defaults, self.spec.max_model_len)
        engine = Engine(lambda: model, EngineOptions())
        engine.load()
        return engine

    def run(self, random: Random) -> list[ScheduledRequest]:
        """Run requests that arrive over time, and abort some of them. Returns the requests."""
        engine = self.engine(random.choice(list(PrefillMode)))
        requests = [request(random, n) for n in range(random.randint(8, 16))]
        backlog = list(requests)
        while backlog or engine.has_work:
            if backlog and (not engine.has_work or random.random() < 0.8):
                engine.add(backlog.pop())
            if random.random() < 0.05:
                engine.abort(random.choice(requests).request_id)
            engine.step()
        self.num_preempted += engine.snapshot.scheduler.preemptions_total
        return requests


def request(random: Random, number: int) -> ScheduledRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=random.randint(1, MAX_TOKENS))
    return ScheduledRequest(f"r{number}", list(random.choice(PROMPTS)), sampling, time.monotonic())


@pytest.mark.parametrize(
    "device, num_schedules", [("cpu", 4), pytest.param("cuda", 200, marks=[pytest.mark.gpu, pytest.mark.timeout(600)])], ids=["cpu", "cuda"]
)
@pytest.mark.parametrize("name", ["gemma4-e2b", "qwen3-moe"])
def test_random_schedules_give_the_tokens_of_transformers(name: str, device: str, num_schedules: int, tmp_path: Path) -> None:
    model = save_tiny(name, tmp_path)
    rig, aborted = Rig(tmp_path, device, num_blocks=26), 0
    longest: dict[tuple[int, ...], list[int]] = {}
    for seed in range(num_schedules):
        for done in rig.run(Random(seed)):
            prompt, output = tuple(done.token_ids[: done.num_prompt_tokens]), done.output_token_ids
            shorter, longer = sorted((output, longest.get(prompt, [])), key=len)
            assert longer[: len(shorter)] == shorter, seed
            longest[prompt] = longer
            if done.finish_reason is FinishReason.ABORT:
                aborted += 1
            else:
                assert len(output) == done.sampling.max_tokens
    assert rig.num_preempted > num_schedules / 2
    assert aborted > num_schedules / 10
    for prompt, output in longest.items():
        if output:  # transformers would generate it if each token is the likeliest after those before it
            with torch.inference_mode():
                logits = model(torch.tensor([[*prompt, *output[:-1]]])).logits[0, len(prompt) - 1 :]
            assert logits.argmax(-1).tolist() == output
    assert len({token for output in longest.values() for token in output}) > MAX_TOKENS, "tokens that repeat would hide faults"
