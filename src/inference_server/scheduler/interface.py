"""What the engine asks of a scheduler. All calls come from the engine thread."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from inference_server.core.decisions import Decision
from inference_server.core.plan import StepPlan, StepResult
from inference_server.core.records import CacheStats, SchedulerStats
from inference_server.core.request import FinishReason, ScheduledRequest


class SchedulerInterface(Protocol):
    """Owns every unfinished request and the cache."""

    def add(self, request: ScheduledRequest, parent: ScheduledRequest | None = None) -> None:
        """Queue a request. Raises PromptTooLongError when it could never run, even alone in an empty pool.

        parent: a request of the same prompt that was added before. This one waits until the parent's prompt has been computed,
        and starts on its KV; if that comes to nothing, it computes the prompt itself.
        """
        ...

    def schedule(self, now: float) -> StepPlan | None:
        """The next step, or None when nothing can be launched before a step in flight is collected or a request arrives.

        Admits waiting requests, takes blocks, advances the scheduled counters, preempts if it must. Guarantee: with
        unfinished requests and no step in flight, it returns a plan.
        """
        ...

    def prepare(self, plan: StepPlan) -> None:
        """Do what can be done for `update` while a launched step still runs."""
        ...

    def update(self, plan: StepPlan, result: StepResult, stops: Mapping[str, FinishReason]) -> None:
        """Take in a collected step: append sampled tokens, advance the returned counters, finish the requests in `stops`.

        stops: reason by request id, for the rows whose returned token ended the request. Rows of requests that have
        finished or were preempted since the launch are dropped.
        """
        ...

    def finish(self, request: ScheduledRequest, reason: FinishReason) -> None:
        """End a request in whatever state it is and free its blocks and slot at once. Idempotent."""
        ...

    def predicted_wait_s(self, request: ScheduledRequest) -> float:
        """About how long a request that is not added yet would wait to be admitted; 0 when nothing is known."""
        ...

    def scheduler_stats(self) -> SchedulerStats: ...

    def cache_stats(self) -> CacheStats: ...

    def take_decisions(self) -> tuple[Decision, ...]:
        """What it did to requests since the last call: admissions, holds and preemptions, in their order."""
        ...

    def check_integrity(self, unfinished: Iterable[ScheduledRequest]) -> None:
        """Account for every request of `unfinished`, slot, token and block. Raises AssertionError with what is off; slow."""
        ...
