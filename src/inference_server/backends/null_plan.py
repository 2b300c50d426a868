"""A step that belongs to no request, for warm-up and measurement."""

from collections.abc import Sequence

from inference_server.core.kv_layout import KVLayout
from inference_server.core.plan import StepPlan
from inference_server.core.request import BlockTable, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams


def null_plan(num_tokens: Sequence[int], layout: KVLayout, prompt_logprobs: int | None = None) -> StepPlan:
    """A row for each of `num_tokens`, computing that many tokens from position 0. Every row samples; its KV goes to the null block."""
    plan = StepPlan(step_id=-1)
    sampling = SamplingParams(prompt_logprobs=prompt_logprobs)
    for slot, count in enumerate(num_tokens):
        tables = [BlockTable([0] * -(-count // layout.block_size)) for _ in layout.groups]
        plan.add(ScheduledRequest("", [0] * count, sampling, 0.0, slot=slot, block_tables=tables), 0, count, samples=True)
    return plan
