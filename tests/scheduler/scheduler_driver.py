"""`Driver`: the engine's part in scheduler tests. Runs a scheduler over `FakeBackend`, with or without a step of overlap."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from inference_server.backends.fake_backend import FakeBackend, FakeStep
from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.core.options import PrefillMode, SchedulerOptions
from inference_server.core.plan import StepPlan
from inference_server.core.request import FinishReason, RequestOrigin, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.kv_cache.block_pool import BlockPool
from inference_server.kv_cache.cache_manager import CacheManager
from inference_server.kv_cache.eviction import EvictionPolicy
from inference_server.kv_cache.prefix_cache import PrefixCache
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler


def two_groups(window: int) -> tuple[LayerGroup, ...]:
    """A full group and a window group; three blocks of the first have the bytes of two of the second."""
    return LayerGroup((0, 1), 1, 1, 1), LayerGroup((2, 3, 4), 1, 1, 1, window=window)


class Driver:
    """After every call, all books are checked and all free blocks are poisoned. eviction: the policy of the prefix cache; None for none."""

    def __init__(
        self,
        options: SchedulerOptions,
        *,
        groups: tuple[LayerGroup, ...] = two_groups(8),
        block_size: int = 4,
        num_slabs: int = 64,
        overlap: bool = False,
        supports_mixed: bool = True,
        backend: FakeBackend | None = None,
        eviction: EvictionPolicy | None = None,
        step_time_s: Callable[[StepPlan], float] = lambda plan: 0.0,
    ) -> None:
        self.options = options
        layout = KVLayout(groups, block_size, num_slabs)
        self.pool = BlockPool(layout)
        self.cache = CacheManager(self.pool, PrefixCache(self.pool, eviction) if eviction else None)
        self.scheduler = ContinuousBatchScheduler(self.cache, options, supports_mixed=supports_mixed)
        self.backend = backend or FakeBackend(groups, supports_mixed=supports_mixed, supports_overlap=overlap)
        self.backend.load()
        self.backend.allocate(layout)
        self.depth = 1 if overlap else 0
        self.step_time_s = step_time_s
        self.in_flight: deque[tuple[StepPlan, FakeStep]] = deque()
        self.plans: list[StepPlan] = []
        self.unfinished: dict[str, ScheduledRequest] = {}
        self.stop_after: dict[str, int] = {}
        self.finished: list[ScheduledRequest] = []
        self.num_added = 0
        self.check_every_step = True

    def add(
        self,
        prompt: Sequence[int],
        max_tokens: int = 4,
        *,
        stop_after: int = 1 << 30,
        priority: int = 0,
        key: str = "",
        salt: str = "",
        seed: int = 0,
        parent: ScheduledRequest | None = None,
    ) -> ScheduledRequest:
        """Queue a request. stop_after: the number of the output token at which it stops, as by a stop string."""
        name, sampling, arrival = f"r{self.num_added}", SamplingParams(max_tokens=max_tokens, seed=seed), float(self.num_added)
        origin = RequestOrigin(fairness_key=key)
        request = ScheduledRequest(name, list(prompt), sampling, arrival, origin, cache_salt=salt, priority=priority)
        self.scheduler.add(request, parent)
        self.num_added += 1
        self.unfinished[request.request_id] = request
        self.stop_after[request.request_id] = stop_after
        self.check()
        return request

    def add_group(self, prompt: Sequence[int], outputs: Sequence[int], **fields: Any) -> list[ScheduledRequest]:
        """Queue a request for each of `outputs`, with that many output tokens and its index as seed. The first is the others' parent."""
        parent = self.add(prompt, outputs[0], **fields)
        return [parent, *(self.add(prompt, count, seed=seed, parent=parent, **fields) for seed, count in enumerate(outputs[1:], 1))]

    def abort(self, request: ScheduledRequest) -> None:
        self.scheduler.finish(request, FinishReason.ABORT)
        self._note_ends()
        self.check()

    def step(self) -> StepPlan | None:
        """Do one iteration: launch the next step, and collect the oldest unless it may stay in flight."""
        was_idle = not self.in_flight
        decoding = {request.request_id for request in self.scheduler._batch.running}
        plan = self.scheduler.schedule(float(len(self.plans)))
        if plan is None:
            assert not (was_idle and self.scheduler.has_unfinished()), "unfinished requests, and nothing to run"
        else:
            self.plans.append(plan)
            self._check_limits(plan, decoding)
            handle = self.backend.launch(plan)
            self.backend.sample(handle)
            self.in_flight.append((plan, handle))
        self.check()
        if self.in_flight and (plan is None or len(self.in_flight) > self.depth):
            self._collect()
            self.check()
        return plan

    def step_until(self, done: Callable[[], bool], limit: int = 200) -> int:
        """Step until `done`. Returns how many steps it took."""
        for count in range(limit):
            if done():
                return count
            self.step()
        raise AssertionError("never happened")

    def run(self, limit: int = 2000) -> None:
        """Step until nothing is left."""
        for _ in range(limit):
            if not (self.scheduler.has_unfinished() or self.in_flight):
                break
            self.step()
        assert not self.unfinished, "requests that never end"
        assert self.pool.used_bytes == 0, "blocks outlive their requests"
        for request in self.finished:
            self.check_output(request)

    def check(self) -> None:
        if not self.check_every_step:
            return
        self.scheduler.check_integrity(self.unfinished.values())
        for group in range(len(self.pool.layout.groups)):
            blocks = range(self.pool.layout.num_blocks(group))
            free = (b for b in blocks if not (self.pool.ref_count(group, b) or self.pool.is_kept(group, b)))
            self.backend.poison(group, free)

    def _check_limits(self, plan: StepPlan, decoding: set[str]) -> None:
        """decoding: the requests that were past their prompt before the plan was made."""
        mode, options = self.scheduler._mode, self.options
        prefills = [count for request, count in zip(plan.requests, plan.num_new_tokens, strict=True) if request.request_id not in decoding]
        assert len(plan) <= options.max_batch_size
        for request, start, count in zip(plan.requests, plan.starts, plan.num_new_tokens, strict=True):
            assert start + count < request.num_prompt_tokens + request.sampling.max_tokens, "KV that no token needs"
        if mode is not PrefillMode.MIXED:
            assert not (prefills and len(prefills) < len(plan)), "prompts and decodes share a step"
        if mode in (PrefillMode.MIXED, PrefillMode.CHUNKED):
            assert max(prefills, default=0) <= (options.prefill_chunk_size or options.max_batched_tokens)
            assert plan.num_tokens <= options.max_batched_tokens
        else:
            assert plan.num_tokens <= options.max_batched_tokens or len(plan) == 1
            assert mode is not PrefillMode.MONOLITHIC or len(prefills) <= 1

    def _collect(self) -> None:
        plan, handle = self.in_flight.popleft()
        result = self.backend.collect(handle)
        result.elapsed_s = self.step_time_s(plan)
        stops = {
            request.request_id: FinishReason.STOP
            for request, samples in zip(plan.requests, plan.samples, strict=True)
            if samples and not request.finished and request.num_output_tokens + 1 >= self.stop_after[request.request_id]
        }
        if plan.step_id % 3:  # calling it is optional
            self.scheduler.prepare(plan)
        self.scheduler.update(plan, result, stops)
        self._note_ends()

    def _note_ends(self) -> None:
        for request in [request for request in self.unfinished.values() if request.finished]:
            del self.unfinished[request.request_id]
            self.finished.append(request)
            self.check_output(request)

    def check_output(self, request: ScheduledRequest) -> None:
        """Assert that the output is that of a straight run, and as long as its finish reason says."""
        output = request.output_token_ids
        assert output == self.straight_run(request), "a wrong token"
        limit = min(request.sampling.max_tokens, self.stop_after[request.request_id])
        assert len(output) <= limit
        if request.finish_reason is not FinishReason.ABORT:
            assert len(output) == limit

    def straight_run(self, request: ScheduledRequest) -> list[int]:
        """What a model without blocks generates after the request's prompt, as many tokens as the request has got."""
        return self.backend.expected_tokens(request.token_ids[: request.num_prompt_tokens], request.num_output_tokens)
