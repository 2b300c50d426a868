"""A backend whose answers a test chooses, and all that it takes to run an engine on it.

`EchoBackend` answers with the prompt's own bytes, then end of text, so a test chooses the output by choosing the prompt.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Event

from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.core.model_spec import GenerationDefaults, ModelSpec
from inference_server.core.options import EngineOptions, SchedulerOptions
from inference_server.core.outputs import OutputDelta
from inference_server.core.plan import StepPlan, StepResult, TokenMasks
from inference_server.core.records import RequestRecord, StepRecord
from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.engine.engine import Engine
from inference_server.engine.loaded_model import LoadedModel
from inference_server.kv_cache.block_pool import BlockPool
from inference_server.kv_cache.cache_manager import CacheManager
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler
from inference_server.scheduler.interface import SchedulerInterface
from inference_server.tokenization.base import TokenizerLike
from inference_server.tokenization.chat_template import ChatTemplate
from inference_server.tokenization.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
EOS = TOKENIZER.eos_token_ids[0]

SPEC = ModelSpec(
    architecture="echo",
    vocab_size=TOKENIZER.vocab_size,
    max_model_len=4096,
    groups=(LayerGroup((0,), 1, 1, 4),),
    device="none",
    dtype="int32",
    num_parameters=0,
    free_bytes=0,
)


@dataclass
class VirtualClock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class EchoBackend:
    """before_launch: called before every launch; may raise or block. gate: every collect waits until it is set."""

    spec: ModelSpec = SPEC
    before_launch: Callable[[StepPlan], None] = lambda plan: None
    before_collect: Callable[[StepPlan], None] = lambda plan: None
    gate: Event = field(default_factory=Event)
    num_launches: int = 0
    closed: bool = False

    def __post_init__(self) -> None:
        self.gate.set()

    def load(self) -> ModelSpec:
        return self.spec

    def allocate(self, layout: KVLayout) -> None: ...

    def launch(self, plan: StepPlan) -> tuple[StepPlan, list[int]]:
        self.num_launches += 1
        self.before_launch(plan)
        rows = zip(plan.requests, plan.starts, plan.num_new_tokens, plan.samples, strict=True)
        return plan, [echo(request, start + new) if samples else -1 for request, start, new, samples in rows]

    def sample(self, step: tuple[StepPlan, list[int]], masks: TokenMasks | None = None) -> None: ...

    def collect(self, step: tuple[StepPlan, list[int]]) -> StepResult:
        assert self.gate.wait(30), "the gate stayed shut"
        self.before_collect(step[0])
        return StepResult(step[0].step_id, step[1])

    def close(self) -> None:
        self.closed = True


def echo(request: ScheduledRequest, position: int) -> int:
    """The token at `position`: the prompt again without begin of text, then end of text; or the prompt for ever, if that is ignored."""
    answer = request.token_ids[1 : request.num_prompt_tokens]
    index = position - request.num_prompt_tokens
    if index < len(answer):
        return answer[index]
    return EOS if EOS in request.sampling.stop_token_ids else answer[index % len(answer)]


def scheduler_of(max_batch_size: int = 8, num_blocks: int = 256, **options: object) -> ContinuousBatchScheduler:
    """The real scheduler, over a pool of `num_blocks` blocks of 4 tokens."""
    cache = CacheManager(BlockPool(KVLayout.from_num_blocks(SPEC.groups, 4, num_blocks)))
    return ContinuousBatchScheduler(cache, SchedulerOptions(max_batch_size=max_batch_size, **options))  # type: ignore[arg-type]


@dataclass
class RecordList:
    steps: list[StepRecord] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)

    def on_step(self, record: StepRecord) -> None:
        self.steps.append(record)

    def on_request(self, record: RequestRecord) -> None:
        self.requests.append(record)


def loaded(
    backend: EchoBackend | None = None,
    scheduler: SchedulerInterface | None = None,
    tokenizer: TokenizerLike = TOKENIZER,
    overlap: bool = False,
) -> LoadedModel:
    backend = backend or EchoBackend()
    spec = replace(backend.spec, supports_overlap=overlap)
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {}, stop_strings=("<turn>",))
    scheduler = scheduler or scheduler_of()
    return LoadedModel(backend, scheduler, tokenizer, template, spec, GenerationDefaults(temperature=0.0), spec.max_model_len)


def engine_on(
    model: LoadedModel, clock: VirtualClock | None = None, sink: RecordList | None = None, options: EngineOptions | None = None
) -> Engine:
    """A loaded engine without a thread."""
    engine = Engine(lambda: model, options or EngineOptions(), [sink] if sink else [], clock or VirtualClock())
    engine.load()
    return engine


def scheduled(text: str, request_id: str = "r", arrival_time: float = 100.0, **sampling: object) -> ScheduledRequest:
    params: dict[str, object] = {"max_tokens": 1000, "stop_token_ids": frozenset({EOS}), **sampling}
    return ScheduledRequest(request_id, TOKENIZER.encode(text), SamplingParams(**params), arrival_time)  # type: ignore[arg-type]


def run_dry(engine: Engine, max_steps: int = 10_000) -> dict[str, list[OutputDelta]]:
    """Step without a thread until there is no work. Returns the deltas by request id."""
    seen: dict[str, list[OutputDelta]] = {}
    for _ in range(max_steps):
        if not engine.has_work:
            return seen
        for request_id, delta in engine.step().items():
            seen.setdefault(request_id, []).append(delta)
    raise AssertionError("the engine does not come to rest")


def merged(deltas: list[OutputDelta]) -> OutputDelta:
    whole = OutputDelta()
    for delta in deltas:
        whole.merge(delta)
    return whole
