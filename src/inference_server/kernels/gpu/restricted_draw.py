"""One token a row among those that top-k, top-p and min-p leave.

Of the candidates that `kernels.gpu.candidates` has gathered, one program a row finds the exact set, as `sampling.reference` defines it, and
draws as `kernels.gpu.draw` does. A row with more candidates than fit is searched in its logits, slowly.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.gpu.candidates import gather_candidates, highest_of, scaled, token_weights
from inference_server.kernels.gpu.draw import BELOW_ONE, draw_rows, gumbel, part_maxima, uniform

CANDIDATES = 16384
_TILE = 2048


def restricted_draw(
    logits: Tensor,
    temperatures: Tensor,
    keys: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    floors: Tensor,
    restricted: Tensor,
    capacity: int = CANDIDATES,
) -> Tensor:
    """Ids [R] int64 of logits [R, V] float32, contiguous. Equal values: the lower id. All others are [R], keys [R, 2].

    temperatures, keys: as `draw` takes them. top_k: int32, 0 for all. top_p: int32, `nucleus.fixed_point_top_p`, 0 for all.
    floors: float32, log(min_p), -inf for all. restricted: int32, 0 for rows that draw from all tokens or greedily.
    capacity: candidates a row.
    """
    rows, vocab = logits.shape
    maxima = part_maxima(logits)
    candidates = gather_candidates(logits, maxima, temperatures, top_k, top_p, floors, restricted, capacity)
    drawn = torch.empty(rows, dtype=torch.int64, device=logits.device)
    parts = maxima.shape[1]
    _finish_kernel[(rows,)](
        logits, maxima, temperatures, keys, top_k, top_p, floors, restricted, candidates.masses, candidates.found, candidates.values,
        candidates.ids, drawn, vocab, parts, capacity, _TILE, triton.next_power_of_2(parts), BELOW_ONE, num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    return draw_rows(logits, maxima, temperatures, keys, drawn, restricted)


@triton.jit
def _finish_kernel(
    logits,
    maxima,
    temperatures,
    keys,
    top_k,
    top_p,
    floors,
    restricted,
    masses,
    found,
    candidates,
    candidate_ids,
    drawn,
    vocab,
    parts,
    capacity,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
    BELOW_ONE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    if tl.load(restricted + row) == 0:
        return
    k, p, floor = tl.load(top_k + row), tl.load(top_p + row), tl.load(floors + row)
    highest, temperature = highest_of(maxima, row, parts, PARTS), tl.load(temperatures + row)
    offset = tl.load(keys + 2 * row).to(tl.uint32, bitcast=True)
    multiplier = tl.load(keys + 2 * row + 1).to(tl.uint32, bitcast=True)
    of_part = tl.arange(0, PARTS)
    mass = tl.sum(tl.load(masses + row * parts + of_part, mask=(of_part < parts) & (p > 0), other=0))
    number = tl.load(found + row * (parts + 2) + parts)
    if number <= capacity:
        best = _draw_from(
            candidates + row * capacity, candidate_ids + row * capacity, number, highest, temperature, k, p, floor, mass,
            offset, multiplier, False, TILE, BELOW_ONE,
        )  # fmt: skip
    else:
        best = _draw_from(
            logits + row * vocab, candidate_ids, vocab, highest, temperature, k, p, floor, mass,
            offset, multiplier, True, TILE, BELOW_ONE,
        )  # fmt: skip
    tl.store(drawn + row, best.to(tl.int64))


@triton.jit
def _draw_from(
    values_at, ids_at, number, highest, temperature, k, p, floor, mass, offset, multiplier,
    RAW: tl.constexpr, TILE: tl.constexpr, BELOW_ONE: tl.constexpr,
):  # fmt: skip
    """The id drawn from `number` tokens in the order of their ids: candidates, or RAW logits of the whole row."""
    key_k, id_k = tl.full((), -2147483648, tl.int32), tl.full((), 2147483647, tl.int32)
    if (k > 0) & (k < number):
        key_k, id_k = _threshold(values_at, ids_at, number, highest, temperature, key_k, id_k, k.to(tl.int64), RAW, False, TILE)
    key_p, id_p = key_k, id_k
    if p > 0:
        if k > 0:
            mass = _sum_from(values_at, ids_at, number, highest, temperature, key_k, id_k, key_k, RAW, True, TILE)
        high, low = mass >> 31, mass & 2147483647
        target = tl.maximum(high * p + (low * p >> 31), 1)
        key_p, id_p = _threshold(values_at, ids_at, number, highest, temperature, key_k, id_k, target, RAW, True, TILE)
    best, best_id = tl.full((), float("-inf"), tl.float32), tl.full((), 0, tl.int32)
    for begin in range(0, number, TILE):
        values, ids = _tile(values_at, ids_at, begin, number, highest, temperature, RAW, TILE)
        keys = _ordered(values)
        allowed = ((keys > key_p) | ((keys == key_p) & (ids <= id_p))) & (values >= floor)
        noisy = tl.where(allowed, values + gumbel(uniform(ids.to(tl.uint32), offset, multiplier, BELOW_ONE)), float("-inf"))
        best_here = tl.max(noisy)
        if best_here > best:
            best, best_id = best_here, tl.min(tl.where(noisy == best_here, ids, 2147483647))
    return best_id


@triton.jit
def _threshold(
    values_at, ids_at, number, highest, temperature, key_before, id_before, target,
    RAW: tl.constexpr, WEIGHTED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The key and the id of the last token of the shortest run, in order of falling key and then rising id, whose sum reaches `target`.

    Only tokens up to (key_before, id_before) in that order take part; WEIGHTED: they count by their weights.
    """
    low, high = tl.maximum(key_before, -2139095041), tl.full((), 0, tl.int32)  # the keys of -inf and of 0
    while low < high:
        middle = low + ((high - low + 1) >> 1)
        total = _sum_from(values_at, ids_at, number, highest, temperature, key_before, id_before, middle, RAW, WEIGHTED, TILE)
        if total >= target:
            low = middle
        else:
            high = middle - 1
    rest = target - _sum_from(values_at, ids_at, number, highest, temperature, key_before, id_before, low + 1, RAW, WEIGHTED, TILE)
    seen, last_id = tl.full((), 0, tl.int64), tl.full((), -1, tl.int32)
    for begin in range(0, number, TILE):
        values, ids = _tile(values_at, ids_at, begin, number, highest, temperature, RAW, TILE)
        tied = (_ordered(values) == low) & ((low > key_before) | (ids <= id_before))
        worth = tied.to(tl.int64)
        if WEIGHTED:
            worth = tl.where(tied, token_weights(values), 0)
        before = seen + tl.cumsum(worth) - worth
        last_id = tl.maximum(last_id, tl.max(tl.where(tied & (before < rest), ids, -1)))
        seen += tl.sum(worth)
    return low, last_id


@triton.jit
def _sum_from(
    values_at, ids_at, number, highest, temperature, key_before, id_before, key,
    RAW: tl.constexpr, WEIGHTED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The number, or if WEIGHTED the weight, int64, of the tokens at or above `key` among those up to (key_before, id_before)."""
    total = tl.full((TILE,), 0, tl.int64)
    for begin in range(0, number, TILE):
        values, ids = _tile(values_at, ids_at, begin, number, highest, temperature, RAW, TILE)
        keys = _ordered(values)
        counted = (keys >= key) & ((keys > key_before) | ((keys == key_before) & (ids <= id_before)))
        if WEIGHTED:
            total += tl.where(counted, token_weights(values), 0)
        else:
            total += counted.to(tl.int64)
    return tl.sum(total)


@triton.jit
def _tile(values_at, ids_at, begin, number, highest, temperature, RAW: tl.constexpr, TILE: tl.constexpr):
    """values and ids of one tile; what is beyond the end is -inf and the highest id."""
    at = begin + tl.arange(0, TILE)
    if RAW:
        values = scaled(values_at, at, at < number, highest, temperature)
        ids = at
    else:
        values = tl.load(values_at + at, mask=at < number, other=float("-inf"))
        ids = tl.load(ids_at + at, mask=at < number, other=2147483647)
    return values, ids


@triton.jit
def _ordered(values):
    """float32 to int32 of the same order; adding zero makes -0 equal to 0."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
