"""A scheduler over `FakeBackend` on a virtual clock: a step lasts as long as a cost model says, and the engine's part takes no time."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from inference_server.backends.fake_backend import FakeBackend
from inference_server.core.kv_layout import KVLayout
from inference_server.core.options import SchedulerOptions
from inference_server.core.plan import StepPlan
from inference_server.core.request import RequestOrigin, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.kv_cache.block_pool import BlockPool
from inference_server.kv_cache.cache_manager import CacheManager
from inference_server.scheduler.admission import AdmissionController
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler

INPUT_WEIGHT, OUTPUT_WEIGHT = 1, 2


def make_request(
    name: str, num_prompt: int, max_tokens: int, *, key: str = "", arrival: float = 0.0, priority: int = 0
) -> ScheduledRequest:
    prompt = [ord(character) % 7 for character in name] + [3] * num_prompt
    sampling = SamplingParams(max_tokens=max_tokens)
    return ScheduledRequest(name, prompt[:num_prompt], sampling, arrival, RequestOrigin(fairness_key=key))


def step_seconds(plan: StepPlan) -> float:
    """Seconds of a step: 10 ms for the weights, 0.1 ms a row, 0.05 ms a token."""
    return 0.01 + 1e-4 * len(plan) + 5e-5 * plan.num_tokens


@dataclass
class Life:
    """What the client of one request saw. token_times: the seconds at which its tokens came."""

    request: ScheduledRequest
    token_times: list[float] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        return self.token_times[0] - self.request.arrival_time

    @property
    def inter_token(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.token_times)]


class VirtualServer:
    """served: the service that each fairness key has had, counted here and not by the policy. ends: when requests ended."""

    def __init__(
        self,
        options: SchedulerOptions,
        *,
        num_blocks: int = 4096,
        cost: Callable[[StepPlan], float] = step_seconds,
        overlap: bool = False,
        ageing_s: float = 5.0,
    ) -> None:
        self.now = 0.0
        self.backend = FakeBackend(supports_overlap=overlap)
        layout = KVLayout.from_num_blocks(self.backend.load().groups, 16, num_blocks)
        self.backend.allocate(layout)
        cache = CacheManager(BlockPool(layout))
        self.scheduler = ContinuousBatchScheduler(cache, options, admission=AdmissionController(cache, ageing_s=ageing_s))
        self.lives: dict[str, Life] = {}
        self.served: dict[str, int] = {}
        self.ends: list[float] = []
        self._cost = cost
        self._depth = 1 if overlap else 0
        self._in_flight: deque[StepPlan] = deque()
        self._handles: deque[object] = deque()

    def add(self, request: ScheduledRequest) -> Life:
        self.scheduler.add(request)
        life = self.lives[request.request_id] = Life(request)
        return life

    def step(self) -> StepPlan | None:
        """Launch a step, then collect the oldest one unless it may stay in flight."""
        plan = self.scheduler.schedule(self.now)
        if plan is not None:
            self._charge_prompts(plan)
            handle = self.backend.launch(plan)
            self.backend.sample(handle)
            self._in_flight.append(plan)
            self._handles.append(handle)
        if self._in_flight and (plan is None or len(self._in_flight) > self._depth):
            self._collect()
        return plan

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        while (self.scheduler.has_unfinished() or self._in_flight) and not until():
            self.step()

    def _charge_prompts(self, plan: StepPlan) -> None:
        for request, start in zip(plan.requests, plan.starts, strict=True):
            if start == 0 and not request.num_preemptions:
                self._serve(request, INPUT_WEIGHT * request.num_prompt_tokens)

    def _serve(self, request: ScheduledRequest, cost: int) -> None:
        self.served[request.origin.fairness_key] = self.served.get(request.origin.fairness_key, 0) + cost

    def _collect(self) -> None:
        plan = self._in_flight.popleft()
        result = self.backend.collect(self._handles.popleft())  # type: ignore[arg-type]
        result.elapsed_s = self._cost(plan)
        self.now += result.elapsed_s
        alive = [request for request in plan.requests if not request.finished]
        before = {request.request_id: request.num_output_tokens for request in alive}
        self.scheduler.update(plan, result, {})
        for request in alive:
            if request.num_output_tokens > before[request.request_id]:
                self.lives[request.request_id].token_times.append(self.now)
                self._serve(request, OUTPUT_WEIGHT)
            if request.finished:
                self.ends.append(self.now)
                output = request.output_token_ids
                assert output == self.backend.expected_tokens(request.token_ids[: request.num_prompt_tokens], len(output))
