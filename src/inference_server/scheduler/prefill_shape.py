"""How much of each admitted prompt a step computes: one pure function for each prefill mode.

`remaining` lists the tokens that each prompt has yet to compute, oldest first. The result has an entry for each of them, 0 for a prompt
that sits this step out. At least the oldest prompt gets a share whenever there is a budget.
"""

from collections.abc import Sequence

from inference_server.core.options import PrefillMode


def shape_prefill(mode: PrefillMode, remaining: Sequence[int], budget: int, chunk: int) -> list[int]:
    """Tokens of each prompt to compute in a step of at most `budget` prompt tokens, `chunk` of one prompt.

    In the modes that compute prompts whole, one that is longer than the budget runs alone.
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
    """Up to half of the budget goes to the oldest prompt, the rest to the others, shortest first; the oldest takes what they leave.

    So a short prompt overtakes any number of long ones, and no flood of short ones starves a long one.
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
