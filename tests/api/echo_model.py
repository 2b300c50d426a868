"""A model for HTTP tests. It answers with the prompt's own bytes, so a test chooses the answer; scheduler and cache are the real ones."""

import time
from dataclasses import dataclass, field
from math import inf
from threading import Event

from inference_server.config import Settings
from inference_server.core.errors import StepFailedError
from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.core.logprobs import TokenLogprobs
from inference_server.core.model_spec import GenerationDefaults, ModelSpec
from inference_server.core.plan import StepPlan, StepResult, TokenMasks
from inference_server.core.request import ScheduledRequest
from inference_server.engine.loaded_model import LoadedModel
from inference_server.kv_cache.block_pool import BlockPool
from inference_server.kv_cache.cache_manager import CacheManager
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler
from inference_server.tokenization.chat_template import ChatTemplate
from inference_server.tokenization.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
MODEL_NAME = "test/echo"
MAX_MODEL_LEN = 2048
SPEC = ModelSpec(
    "echo",
    TOKENIZER.vocab_size,
    MAX_MODEL_LEN,
    (LayerGroup((0,), 1, 1, 4),),
    "cpu",
    "int32",
    0,
    free_bytes=0,
    supports_prompt_logprobs=True,
)


@dataclass
class EchoBackend:
    """A step lasts `step_s`, and ends only while `gate` is set. failing: whether each step raises."""

    step_s: float = 0.0
    gate: Event = field(default_factory=Event)
    failing: bool = False

    def __post_init__(self) -> None:
        self.gate.set()

    def load(self) -> ModelSpec:
        return SPEC

    def allocate(self, layout: KVLayout) -> None: ...

    def launch(self, plan: StepPlan) -> StepResult:
        if self.failing:
            raise StepFailedError("a secret of the inside")
        result = StepResult(plan.step_id, [])
        rows = zip(plan.requests, plan.starts, plan.num_new_tokens, plan.samples, strict=True)
        for row, (request, start, new, samples) in enumerate(rows):
            result.token_ids.append(self.token(request, start + new) if samples else -1)
            if samples and request.sampling.logprobs is not None:
                result.logprobs[row] = score(result.token_ids[row], request.sampling.logprobs)
            if request.sampling.prompt_logprobs is not None:
                prompt = request.token_ids[: request.num_prompt_tokens]
                result.prompt_logprobs[row] = [score(t, request.sampling.prompt_logprobs) for t in prompt[start + 1 : start + new + 1]]
        return result

    def token(self, request: ScheduledRequest, position: int) -> int:
        return _echo(request, position)

    def sample(self, step: StepResult, masks: TokenMasks | None = None) -> None: ...

    def collect(self, step: StepResult) -> StepResult:
        assert self.gate.wait(30), "the gate stayed shut"
        time.sleep(self.step_s)
        return step

    def close(self) -> None: ...


def score(token_id: int, number: int) -> TokenLogprobs:
    """Made-up scores: the likeliest tokens are the token itself and those after it, and spaces are impossible."""
    return TokenLogprobs(token_id, -inf if token_id == ord(" ") else -0.5, tuple((token_id + i, -0.5 - i) for i in range(number)))


def _echo(request: ScheduledRequest, position: int) -> int:
    answer = request.token_ids[1 : request.num_prompt_tokens]
    index = position - request.num_prompt_tokens
    if index < len(answer) or TOKENIZER.eos_token_ids[0] not in request.sampling.stop_token_ids:
        return answer[index % len(answer)]
    return TOKENIZER.eos_token_ids[0]


def load_echo(settings: Settings, backend: EchoBackend) -> LoadedModel:
    options = settings.cache_options()
    cache = CacheManager(BlockPool(KVLayout.from_num_blocks(SPEC.groups, options.block_size, options.num_blocks or 4096)))
    scheduler = ContinuousBatchScheduler(cache, settings.scheduler_options())
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    return LoadedModel(backend, scheduler, TOKENIZER, template, SPEC, GenerationDefaults(temperature=0.0), MAX_MODEL_LEN)
