"""`Intake`: which requests wait, and which of them enter the batch. It knows the policy's order and the gates, and computes nothing.

Of requests with one prompt, the first is the parent of the others. These children wait beside the queue until it has computed the
prompt, and are then admitted on its KV. The first child without room joins the queue, and becomes the parent of the children after it.
"""

from collections.abc import KeysView

from inference_server.core.request import ScheduledRequest
from inference_server.kv_cache.cache_manager import CacheManager
from inference_server.scheduler.active_batch import ActiveBatch
from inference_server.scheduler.admission import AdmissionController, AdmissionPass, HoldReason, Holds
from inference_server.scheduler.decision_log import DecisionLog
from inference_server.scheduler.drain_rate import DrainRate
from inference_server.scheduler.forks import ForkQueue
from inference_server.scheduler.policies import SchedulingPolicy

_LOOKAHEAD = 16


class Intake:
    """max_chunk: the most tokens of one prompt that a step computes. `len` is the number of requests that wait."""

    def __init__(
        self,
        policy: SchedulingPolicy,
        admission: AdmissionController,
        cache: CacheManager,
        batch: ActiveBatch,
        max_chunk: int,
        log: DecisionLog,
    ) -> None:
        self.waiting_tokens = 0  # of the queue alone: children have little to compute
        self.admitted_total = 0
        self._policy = policy
        self._admission = admission
        self._cache = cache
        self._batch = batch
        self._max_chunk = max_chunk
        self._log = log
        self._forks = ForkQueue()
        self._drain_rate = DrainRate()
        self._holds = Holds()
        self._now = 0.0

    def add(self, request: ScheduledRequest, parent: ScheduledRequest | None) -> None:
        """Queue a request, or let it wait for its parent while that has not answered.

        One that wants the log-probabilities of its prompt does not wait: it has to compute the prompt itself.
        """
        scores_prompt = request.sampling.prompt_logprobs is not None
        if parent is not None and not scores_prompt and not parent.finished and not parent.num_output_tokens:
            self._forks.put(parent, [request])
        else:
            self._push(request)

    def requeue(self, request: ScheduledRequest) -> None:
        """Queue a request that was preempted and holds nothing any more."""
        self._policy.requeue(request)
        self._admission.preempted(len(self._batch))
        self.waiting_tokens += request.num_tokens

    def leave(self, request: ScheduledRequest) -> None:
        """Forget a request that has ended, wherever it was. The first of its children is queued, and the others wait for that one."""
        if self._policy.end(request):
            self.waiting_tokens -= request.num_tokens
        self._admission.ended(request)
        self._forks.remove(request)
        if children := self._forks.take(request):
            self._push(children[0])
            self._forks.put(children[0], children[1:])

    def admit(self, now: float) -> None:
        """Move waiting requests into free slots, in the policy's order.

        If the head of the queue is held, the next few are tried too, unless a request has been held for too long, or the head waits for
        memory again after a preemption.
        """
        self._now = now
        admitted, tokens = self.admitted_total, self.waiting_tokens
        self._holds = Holds()
        if len(self._policy) and not self._batch.full:
            gate = self._admission.open(self._batch, self._max_chunk)
            while (head := self._admission.choose(self._policy.peek(), now)) is not None and self._start(head, gate):
                pass
            if head is not None and not self._batch.full and not head.num_preemptions and self._admission.may_pass(head, now):
                for request in self._policy.lookahead(_LOOKAHEAD):
                    if request is not head:
                        self._start(request, gate)
        self._drain_rate.observe(now, self.admitted_total - admitted, tokens - self.waiting_tokens, len(self._policy))

    @property
    def parent_ids(self) -> KeysView[str]:
        """Ids of the requests whose prompt others wait for."""
        return self._forks.parent_ids

    def fork(self, parent: ScheduledRequest) -> None:
        """Admit the children of a request whose prompt has just been collected."""
        gate = self._admission.open(self._batch, self._max_chunk)
        children = self._forks.take(parent)
        for index, child in enumerate(children):
            self._push(child)
            if not self._start(child, gate, parent):
                self._forks.put(child, children[index + 1 :])
                break

    def waiting(self) -> list[ScheduledRequest]:
        """The queue in its order, then the children."""
        return [*self._policy, *self._forks]

    def waiting_by_reason(self) -> dict[str, int]:
        by_reason = self._holds.by_reason(len(self._policy))
        return by_reason | {HoldReason.PROMPT.value: len(self._forks)} if self._forks else by_reason

    @property
    def drain_rate(self) -> float:
        """Tokens a second that leave the queue while there is one; 0 while that is not known yet."""
        return self._drain_rate.tokens_per_s

    def predicted_wait_s(self, request: ScheduledRequest) -> float:
        rate = self.drain_rate
        return min(self._policy.tokens_ahead(request), self.waiting_tokens) / rate if rate else 0.0

    def __len__(self) -> int:
        return len(self._policy) + len(self._forks)

    def _push(self, request: ScheduledRequest) -> None:
        self._policy.push(request)
        self.waiting_tokens += request.num_tokens

    def _start(self, request: ScheduledRequest, gate: AdmissionPass, parent: ScheduledRequest | None = None) -> bool:
        """Admit a queued request, on the KV of its parent's prompt if it has a parent; or count what holds it, and return False."""
        reason = HoldReason.SLOTS if self._batch.full else self._try(request, gate, parent)
        if reason is not None:
            self._holds.add(reason)
            self._log.held(request, reason)
            return False
        if parent is not None:
            request.num_cached_tokens = request.num_computed_tokens
        elif request.admitted_time is None:
            self._cache.count_hits(request)
            for each in (request, *self._forks.children(request)):
                each.admitted_time = self._now
        self._policy.start(request)
        self._admission.admitted(request)
        self.waiting_tokens -= request.num_tokens
        self._batch.add(request)
        self._log.admitted(request)
        self.admitted_total += 1
        return True

    def _try(self, request: ScheduledRequest, gate: AdmissionPass, parent: ScheduledRequest | None) -> HoldReason | None:
        """Pass the gate, which gives the request the KV that exists of its prompt. If it is held, free that KV and return the reason."""
        reason = gate.admit(request, parent)
        if reason is not None:
            self._cache.free(request)
            request.num_computed_tokens = request.num_collected_tokens = 0
        return reason

    def check_integrity(self) -> None:
        """Raises AssertionError with what is off."""
        assert self.waiting_tokens == sum(request.num_tokens for request in self._policy), "the waiting tokens are off"
        requests = [*self._batch.prefilling, *self._batch.running, *self._policy]
        unanswered = {request.request_id for request in requests if not request.num_output_tokens}
        assert self.parent_ids <= unanswered, "children wait in vain"
