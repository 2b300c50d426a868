"""How much of each admitted prompt a step computes: one pure function for each prefill mode.

`remaining` lists the tokens that each prompt has yet to compute, oldest first; the answer runs in parallel, 0 for a prompt
that sits this step out. At least the oldest prompt gets a share whenever there is a budget.
"""

from collections.abc import Sequence

from inference_server.core.options import PrefillMode


def shape_prefill(mode: PrefillMode, remaining: Sequence[int], budget: int, chunk: int) -> list[int]:
    """Tokens of each prompt to compute in a step of at most `budget` prompt tokens, `chunk` of one prompt.

    The modes that compute whole prompts let one that is longer than the budget run alone.
    """
    if not remaining or budget < 1:
        return [0] * len(remaining)
    match mode:
        case PrefillMode.MONOLITHIC:
            return [remaining[0]] + [0] * (len(remaining) - 1)
        case PrefillMode.BATCHED:
            return _whole_prompts(remaining, budget)
        case PrefillMode.CHUNKED | PrefillMode.MIXED:
            return _chunks(remaining, budget, chunk)


def _whole_prompts(remaining: Sequence[int], budget: int) -> list[int]:
    left = budget - remaining[0]
    shares = [remaining[0]]
    for tokens in remaining[1:]:
        shares.append(tokens if tokens <= left else 0)
        left -= shares[-1]
    return shares


def _chunks(remaining: Sequence[int], budget: int, chunk: int) -> list[int]:
    """Up to half of the budget is the oldest prompt's; the shortest of the others go first, the oldest takes what they leave.

    A short prompt so overtakes any number of long ones, and no flood of short ones starves a long one.
    """
    wanted = [min(tokens, chunk) for tokens in remaining]
    shares = [0] * len(wanted)
    shares[0] = min(wanted[0], -(-budget // 2))
    left = budget - shares[0]
    for index in sorted(range(1, len(wanted)), key=remaining.__getitem__):
        shares[index] = min(wanted[index], left)
        left -= shares[index]
    shares[0] += min(wanted[0] - shares[0], left)
    return shares
