"""`ContinuousBatchScheduler`: after every step, decide anew what the next one computes.

A step hands out a budget of tokens: in each request, `num_computed_tokens` chases `num_tokens`, be it by decode steps, prompt chunks or
the recomputation after a preemption. A row is in flight while its scheduled counter (`num_computed_tokens`) is ahead of its returned one
(`num_collected_tokens`). Pure book-keeping on the engine thread: no clock, no tensors, no threads.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from inference_server.core.decisions import Decision
from inference_server.core.errors import PromptTooLongError
from inference_server.core.options import PrefillMode, SchedulerOptions
from inference_server.core.plan import StepPlan, StepResult
from inference_server.core.records import CacheStats, SchedulerStats
from inference_server.core.request import FinishReason, RequestStatus, ScheduledRequest
from inference_server.kv_cache.cache_manager import CacheManager
from inference_server.scheduler.active_batch import ActiveBatch
from inference_server.scheduler.admission import AdmissionController
from inference_server.scheduler.chunk_budget import ChunkBudget
from inference_server.scheduler.decision_log import DecisionLog
from inference_server.scheduler.intake import Intake
from inference_server.scheduler.policies import SchedulingPolicy, create_policy
from inference_server.scheduler.prefill_shape import shape_prefill

_NUM_FAIRNESS_KEYS = 10


class ContinuousBatchScheduler:
    """Iteration-level batching behind `SchedulerInterface`.

    Admitted requests are served in the policy's order of rank. Memory is taken from the worst-ranked row, but never from one
    in flight: such a row becomes `_resting`, and joins no step until its last one has returned and it can be preempted. So the
    best-ranked row always makes progress, alone if it must; `add` made sure that it fits. Even a row that is alone may run short, because
    its blocks lie scattered over the slabs: then it gives them up too and starts over in an empty pool, where nothing lies scattered.

    A request with children does not decode until its prompt has been collected and the children are forked. Each child starts after
    all but the last token of the prompt, and computes that token itself.
    """

    def __init__(
        self,
        cache: CacheManager,
        options: SchedulerOptions,
        *,
        supports_mixed: bool = True,
        policy: SchedulingPolicy | None = None,
        admission: AdmissionController | None = None,
    ) -> None:
        """policy: None takes the one that the options name. Without supports_mixed, prefill mode `mixed` becomes `chunked`.

        Raises ValueError for a budget below one token a row.
        """
        if options.max_batched_tokens < options.max_batch_size:
            raise ValueError(f"max_batched_tokens ({options.max_batched_tokens}) is below max_batch_size ({options.max_batch_size})")
        self._cache = cache
        self._policy = policy or create_policy(options.scheduling_policy)
        self._max_batched_tokens = options.max_batched_tokens
        mode = options.prefill_mode
        self._mode = PrefillMode.CHUNKED if mode is PrefillMode.MIXED and not supports_mixed else mode
        self._in_chunks = in_chunks = self._mode in (PrefillMode.MIXED, PrefillMode.CHUNKED)
        self._chunk = min(options.prefill_chunk_size or options.max_batched_tokens, options.max_batched_tokens)
        self.max_request_tokens = cache.max_request_tokens(self._chunk if in_chunks else None)
        # Prompts that are computed whole have no limit but the longest sequence that fits.
        max_chunk = self._chunk if in_chunks else self.max_request_tokens
        self._batch = ActiveBatch(options.max_batch_size, self._policy.rank)
        self._log = DecisionLog()
        self._intake = Intake(self._policy, admission or AdmissionController(cache), cache, self._batch, max_chunk, self._log)
        self._chunk_budget = ChunkBudget(alternating=self._mode is PrefillMode.CHUNKED, unnoticed_s=options.unnoticed_itl_ms / 1000)
        self._resting: ScheduledRequest | None = None
        self._prefill_turn = True
        self._next_step_id = 1
        self._preemptions_total = 0

    def add(self, request: ScheduledRequest, parent: ScheduledRequest | None = None) -> None:
        """Queue a request, its max_tokens lowered to what it could generate alone in the pool.

        Raises PromptTooLongError when that is not a single token. The KV of the last token is never computed.
        """
        room = self.max_request_tokens + 1 - request.num_prompt_tokens
        if room < 1:
            raise PromptTooLongError(
                f"the prompt has {request.num_prompt_tokens} tokens, and the KV cache holds {self.max_request_tokens}", param="prompt"
            )
        if request.sampling.max_tokens > room:
            request.sampling = replace(request.sampling, max_tokens=room)
        self._intake.add(request, parent)

    def schedule(self, now: float) -> StepPlan | None:
        """Plan the next step. A pass that schedules nothing, but preempted a row or kept one resting, is repeated: the next finds room."""
        self._log.begin(self._next_step_id, now)
        resting, self._resting = self._resting, None
        while True:
            preemptions_before = self._preemptions_total
            plan = self._build_plan(now, resting)
            if plan.requests:
                self._next_step_id += 1
                return plan
            if resting is None and self._preemptions_total == preemptions_before:
                return None
            resting = None

    def prepare(self, plan: StepPlan) -> None:
        """Do most of the work of caching the prompts that the plan computes."""
        for row in plan.prefill_rows:
            self._cache.prepare(plan.requests[row], plan.starts[row] + plan.num_new_tokens[row])

    def update(self, plan: StepPlan, result: StepResult, stops: Mapping[str, FinishReason]) -> None:
        """A request that has all its max_tokens and is not in `stops` ends too, by LENGTH."""
        self._observe(plan, result.elapsed_s)
        if result.block_mass is not None:
            self._cache.observe_mass(result.block_mass)
        finished, block_size, parent_ids = RequestStatus.FINISHED, self._cache.block_size, self._intake.parent_ids
        returned: list[ScheduledRequest] = []
        for request, start, count, samples, token_id in zip(
            plan.requests, plan.starts, plan.num_new_tokens, plan.samples, result.token_ids, strict=True
        ):
            # A preempted row had nothing in flight, so only rows of finished requests come back late.
            if request.status is finished:
                continue
            request.num_collected_tokens = collected = start + count
            if collected % block_size < count:  # a block is full
                self._commit(request)
            if not samples:
                continue
            if parent_ids and request.request_id in parent_ids:
                self._intake.fork(request)
            token_ids = request.token_ids
            token_ids.append(token_id)
            returned.append(request)
            request.num_inflight_tokens -= 1
            if stops and request.request_id in stops:
                self.finish(request, stops[request.request_id])
            elif len(token_ids) - request.num_prompt_tokens >= request.sampling.max_tokens:
                self.finish(request, FinishReason.LENGTH)
        self._policy.charge(returned)

    def finish(self, request: ScheduledRequest, reason: FinishReason) -> None:
        if request.status is RequestStatus.FINISHED:
            return
        if request.slot >= 0:
            self._release(request)
        self._intake.leave(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.num_inflight_tokens = 0

    def has_unfinished(self) -> bool:
        """Whether any request has not finished: for drivers that do not count theirs, such as benchmarks and tests."""
        return len(self._batch) + len(self._intake) > 0

    def waiting(self) -> list[ScheduledRequest]:
        """Requests that hold no slot, in queue order."""
        return self._intake.waiting()

    def predicted_wait_s(self, request: ScheduledRequest) -> float:
        return self._intake.predicted_wait_s(request)

    def scheduler_stats(self) -> SchedulerStats:
        return SchedulerStats(
            num_waiting=len(self._intake),
            num_prefilling=len(self._batch.prefilling),
            num_running=len(self._batch.running),
            waiting_by_reason=self._intake.waiting_by_reason(),
            admitted_total=self._intake.admitted_total,
            preemptions_total=self._preemptions_total,
            waiting_tokens=self._intake.waiting_tokens,
            active_tokens=self._batch.num_tokens,
            drain_rate=self._intake.drain_rate,
            fairness=self._policy.fairness(_NUM_FAIRNESS_KEYS),
        )

    def cache_stats(self) -> CacheStats:
        return self._cache.stats()

    def take_decisions(self) -> tuple[Decision, ...]:
        return self._log.take()

    def _build_plan(self, now: float, resting: ScheduledRequest | None) -> StepPlan:
        """One pass. Modes other than `mixed` take turns between prompts and decodes while there are both."""
        plan = StepPlan(self._next_step_id)
        mixed, prefill_turn = self._mode is PrefillMode.MIXED, self._prefill_turn
        self._prefill_turn = True
        if mixed or not prefill_turn:
            self._add_decodes(plan, resting)
        if mixed or not plan.requests:
            self._intake.admit(now)
            self._add_prefills(plan, resting)
        if not mixed and prefill_turn:
            self._prefill_turn = not plan.requests
            if not plan.requests:
                self._add_decodes(plan, resting)
        return plan

    def _add_decodes(self, plan: StepPlan, resting: ScheduledRequest | None) -> None:
        """Add one token of every running row. Such a row always lacks the KV of exactly its last token."""
        block_size, parent_ids = self._cache.block_size, self._intake.parent_ids
        add_request, add_start = plan.requests.append, plan.starts.append
        # Preemption takes rows off the end of this list only, so the iteration stays sound.
        for request in self._batch.running:
            start = request.num_computed_tokens
            if start >= request.num_prompt_tokens + request.sampling.max_tokens - 1:
                continue
            if request is resting or request is self._resting or (parent_ids and request.request_id in parent_ids):
                continue
            if start >= len(request.block_tables[0].block_ids) * block_size and not self._grow(request, start + 1):
                continue
            request.num_computed_tokens = start + 1
            request.num_inflight_tokens += 1
            add_request(request)
            add_start(start)
        plan.num_decodes = num_rows = len(plan.requests)
        plan.num_new_tokens.extend([1] * num_rows)
        plan.samples.extend([True] * num_rows)
        self._batch.num_tokens += num_rows

    def _add_prefills(self, plan: StepPlan, resting: ScheduledRequest | None) -> None:
        """Share what is left of the budget among the admitted prompts."""
        rows = [request for request in self._batch.prefilling if request is not resting and request is not self._resting]
        remaining = [len(request.token_ids) - request.num_computed_tokens for request in rows]
        budget = self._max_batched_tokens - len(plan)
        if rows and self._in_chunks:
            limit = self._chunk_budget.limit(len(self._batch.running))
            budget = budget if limit is None else min(budget, limit)
        shares = shape_prefill(self._mode, remaining, budget, self._chunk)
        added: list[tuple[ScheduledRequest, int, int]] = []
        for request, count in zip(rows, shares, strict=True):
            if count == 0 or request.status is RequestStatus.PREEMPTED:
                continue
            start = request.num_computed_tokens
            if not self._grow(request, start + count):
                break
            plan.block_copies += self._cache.take_copies(request)
            request.num_computed_tokens = start + count
            if start + count == len(request.token_ids):
                self._batch.start_running(request)
            added.append((request, start, count))
        added.sort(key=lambda row: row[2] > 1)
        for request, start, count in added:
            plan.add(request, start, count, request.status is RequestStatus.RUNNING)

    def _commit(self, request: ScheduledRequest) -> None:
        """Cache the row's full blocks. A row that recomputes after a preemption does so only once all its known tokens have blocks: until
        then, its blocks that fall out of a window are free at once.
        """
        if request.num_preemptions == 0 or request.status is RequestStatus.RUNNING:
            self._cache.commit(request)

    def _grow(self, request: ScheduledRequest, num_tokens: int) -> bool:
        """Get the blocks for the first `num_tokens` tokens, by preemption if need be. False if the row must sit this step out."""
        self._cache.drop_out_of_window(request, uncommitted=False)
        while not self._cache.extend(request, num_tokens):
            if self._cache.drop_out_of_window(request):
                continue
            victim = self._batch.worst_ranked()
            if victim.num_computed_tokens > victim.num_collected_tokens:
                self._resting = victim
                return False
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: ScheduledRequest) -> None:
        """Take everything from a row with nothing in flight; it will compute its tokens anew."""
        self._release(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = request.num_collected_tokens = 0
        request.num_preemptions += 1
        self._log.preempted(request)
        self._intake.requeue(request)
        self._preemptions_total += 1
        if not len(self._batch):
            self._cache.clear()

    def _observe(self, plan: StepPlan, elapsed_s: float) -> None:
        """Tell the chunk budget how long the step took. Rows of a single token are decodes, or cost as little."""
        num_single = plan.num_new_tokens.count(1)
        self._chunk_budget.observe(num_single, sum(plan.num_new_tokens) - num_single, elapsed_s)

    def _release(self, request: ScheduledRequest) -> None:
        self._batch.remove(request)
        self._cache.free(request)

    def check_integrity(self, unfinished: Iterable[ScheduledRequest]) -> None:
        active, waiting = self._batch.prefilling + self._batch.running, self.waiting()
        assert {id(r) for r in unfinished} == {id(r) for r in active + waiting}, "a request is lost, or not let go"
        assert all(r.slot < 0 and r.num_computed_tokens == 0 for r in waiting), "a waiting request holds something"
        self._intake.check_integrity()
        self._batch.check_integrity()
        self._cache.check_integrity(active)
