"""Log-probabilities of drawn tokens and of prompts.

They come from the model's own logits, before masks, penalties and temperature, as vLLM's do by default. Only rows that ask are scored.
The copy of the results to the host is enqueued like that of the ids, and `Scores.values` reads it once the step has been collected.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference_server.core.logprobs import TokenLogprobs
from inference_server.core.plan import StepPlan
from inference_server.core.request import ScheduledRequest

PROMPT_ROWS = 256  # prompt tokens whose logits exist at once


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities of N tokens and of the likeliest beside them, on the host or on the way there.

    numbers: for each of the N, how many of the likeliest were asked for. logprobs: float32 [N, 1 + K], the token's own first.
    token_ids: int64 [N, 1 + K], in the same places.
    """

    numbers: Sequence[int]
    logprobs: Tensor
    token_ids: Tensor

    def values(self) -> list[TokenLogprobs]:
        rows = zip(self.numbers, self.token_ids.tolist(), self.logprobs.tolist(), strict=True)
        return [TokenLogprobs(ids[0], scores[0], tuple(zip(ids[1 : n + 1], scores[1 : n + 1], strict=True))) for n, ids, scores in rows]


def score(logits: Tensor, token_ids: Tensor, numbers: Sequence[int]) -> Scores:
    """logits: float32 [N, V]. token_ids: int64 [N]. Both on one device."""
    own = token_ids.unsqueeze(1)
    top = logits.topk(min(max(numbers), logits.shape[1]), dim=-1)
    ids = torch.cat((own, top.indices), dim=1)
    logprobs = torch.cat((logits.gather(1, own), top.values), dim=1) - logits.logsumexp(-1, keepdim=True)
    return Scores(numbers, logprobs.to("cpu", non_blocking=True), ids.to("cpu", non_blocking=True))


def rows_to_score(requests: Iterable[ScheduledRequest]) -> list[int]:
    """The sampling rows that want the log-probability of the token they get."""
    return [row for row, request in enumerate(requests) if request.sampling.logprobs is not None]


def values_by_row(scores: Scores | None, requests: Sequence[ScheduledRequest], rows: Sequence[int]) -> dict[int, TokenLogprobs]:
    """The values of a collected step by the rows of its plan. requests, rows: those that sample."""
    return {} if scores is None else dict(zip([rows[row] for row in rows_to_score(requests)], scores.values(), strict=True))


def scores_prompts(plan: StepPlan) -> bool:
    """Whether the step computes tokens of a prompt that is to be scored."""
    rows = ((plan.requests[row], plan.starts[row]) for row in plan.prefill_rows)
    return any(request.sampling.prompt_logprobs is not None and start + 1 < request.num_prompt_tokens for request, start in rows)


def score_prompts(plan: StepPlan, hidden: Tensor, compute_logits: Callable[[Tensor], Tensor]) -> dict[int, list[Scores]]:
    """By row of the plan, the scores of the prompt tokens that follow those computed in this step.

    hidden: [T, H], the flat batch after the last layer. compute_logits: [N, H] to float32 [N, V].
    """
    scores: dict[int, list[Scores]] = {}
    begin = 0
    for row, (request, start, count) in enumerate(zip(plan.requests, plan.starts, plan.num_new_tokens, strict=True)):
        number = request.sampling.prompt_logprobs
        if number is not None and start + 1 < request.num_prompt_tokens:
            following = request.token_ids[start + 1 : min(start + count + 1, request.num_prompt_tokens)]
            scores[row] = []
            for first in range(0, len(following), PROMPT_ROWS):
                ids = following[first : first + PROMPT_ROWS]
                logits = compute_logits(hidden[begin + first : begin + first + len(ids)])
                scores[row].append(score(logits, torch.tensor(ids, device=hidden.device), [number] * len(ids)))
        begin += count
    return scores
