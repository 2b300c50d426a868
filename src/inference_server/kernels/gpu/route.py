"""Which experts a token goes to, on CUDA: softmax, the top k and their weights in one launch, a program a token."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.gpu.launch import overlaps_launches


def route(scores: Tensor, top_k: int, normalize: bool, expert_scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As `reference.route`, ids in int32; of equal scores the lower id wins. NaN scores, as padding may have, give distinct ids too.

    scores may also be partial sums, [parts, tokens, experts].
    """
    tokens, num_experts = scores.shape[-2:]
    expert_ids = torch.empty(tokens, top_k, dtype=torch.int32, device=scores.device)
    weights = torch.empty(tokens, top_k, dtype=torch.float32, device=scores.device)
    overlap = overlaps_launches(scores.device)
    _route_kernel[(tokens,)](
        scores,
        expert_scale,
        expert_ids,
        weights,
        tokens,
        num_experts,
        PARTS=scores.shape[0] if scores.ndim == 3 else 1,
        TOP_K=top_k,
        BLOCK=triton.next_power_of_2(num_experts),
        NORMALIZE=normalize,
        SCALED=expert_scale is not None,
        OVERLAP=overlap,
        num_warps=1,
        launch_pdl=overlap,
    )
    return expert_ids, weights


@triton.jit(do_not_specialize=["tokens"])
def _route_kernel(
    scores,
    expert_scale,
    expert_ids,
    weights,
    tokens,
    num_experts,
    PARTS: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
    NORMALIZE: tl.constexpr,
    SCALED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    score = tl.load(scores + token * num_experts + expert, mask=expert < num_experts, other=float("-inf"))
    for part in tl.static_range(1, PARTS):
        score += tl.load(scores + (part * tokens + token) * num_experts + expert, mask=expert < num_experts, other=0.0)
    exponential = tl.exp(score - tl.max(score))
    share = exponential / tl.sum(exponential)
    share = tl.where(share == share, share, 0.0)
    left = tl.where(expert < num_experts, share, -1.0)
    rank = tl.full((BLOCK,), -1, tl.int32)
    for choice in tl.static_range(TOP_K):
        best = expert == tl.argmax(left, 0, tie_break_left=True)
        rank = tl.where(best, choice, rank)
        left = tl.where(best, -1.0, left)
    factor = tl.where(rank >= 0, share, 0.0)
    if NORMALIZE:
        factor = factor / tl.sum(factor)
    if SCALED:
        factor *= tl.load(expert_scale + expert, mask=expert < num_experts, other=0.0)
    tl.store(expert_ids + token * TOP_K + rank, expert, mask=rank >= 0)
    tl.store(weights + token * TOP_K + rank, factor, mask=rank >= 0)
