"""How a request's parameters change its logits before a token is drawn: masks, biases and penalties, from the sequence's known tokens.

The order is vLLM's: what is not allowed or would end the text too early goes to -inf, biases are added, then repetition, frequency and
presence penalties apply. There is no state, so preemption, reused slots and cached prefixes cannot matter; the tokens of all earlier
steps must be known on the host. This is also the definition that `device_adjustment.py` is tested against.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams


def adjust_logits(logits: Tensor, requests: Sequence[ScheduledRequest], positions: Sequence[int]) -> Tensor:
    """The logits to draw from: `logits` itself ([R, V] float32, never written to) where no row asks for a change, else a copy.

    positions[i]: the index that row i's token will have in its sequence.
    """
    adjusted = logits
    for row, (request, position) in enumerate(zip(requests, positions, strict=True)):
        num_prompt = request.num_prompt_tokens
        if not request.sampling.changes_logits(position - num_prompt):
            continue
        adjusted = logits.clone() if adjusted is logits else adjusted
        tokens = request.token_ids
        adjust_row(adjusted[row], request.sampling, tokens[:num_prompt], tokens[num_prompt:position])
    return adjusted


def adjust_row(logits: Tensor, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> None:
    """Change the logits [V] of the token that follows `prompt` and `output`, in place."""
    if params.allowed_token_ids is not None:
        allowed = torch.tensor(list(params.allowed_token_ids), dtype=torch.int64, device=logits.device)
        kept = logits[allowed]
        logits.fill_(-torch.inf)[allowed] = kept
    if len(output) < params.min_tokens and params.stop_token_ids:
        logits[torch.tensor(list(params.stop_token_ids), device=logits.device)] = -torch.inf
    if params.logit_bias:
        ids, biases = zip(*params.logit_bias, strict=True)
        logits[torch.tensor(ids, device=logits.device)] += torch.tensor(biases, device=logits.device)
    if not params.penalised:
        return
    seen, counts = torch.tensor(list(output), dtype=torch.int64, device=logits.device).unique(return_counts=True)
    if params.repetition_penalty != 1.0:
        repeated = torch.cat((seen, torch.tensor(list(prompt), dtype=torch.int64, device=logits.device))).unique()
        values = logits[repeated]
        logits[repeated] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    logits[seen] -= params.frequency_penalty * counts
    logits[seen] -= params.presence_penalty


def apply_masks(logits: Tensor, masks: Sequence[bytes | None]) -> None:
    """Forbid, in place, what the masks of `SamplingRows` do not allow. logits: [R, V]."""
    for row, mask in zip(logits, masks, strict=True):
        if mask is not None:
            bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), count=len(row), bitorder="little")
            row.masked_fill_((torch.from_numpy(bits) == 0).to(row.device), -torch.inf)
