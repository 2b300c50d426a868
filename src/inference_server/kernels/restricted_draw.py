"""One token a row among those that top-k, top-p and min-p leave, without sorting and without a pass for each bit of a threshold.

Tokens are counted by bins of their distance from the row's maximum, which tells from where on nothing can be in the set. What is above
that (a few hundred of 262,144 as a rule) is gathered in the order of its ids, and one program a row finds the exact set there, as
`sampling.reference` defines it, and draws as `kernels.draw` does. A row with more candidates than fit is searched in its logits, slowly.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.draw import BELOW_ONE, BLOCK, draw_rows, gumbel, part_maxima, uniform

CANDIDATES = 16384
_TILE = 2048
_BINS = 128  # of an eighth of an octave: distances from 2**-8 to 2**8; the last is for tokens that cannot be drawn
_BIN_SHIFT = tl.constexpr(20)
_BIN_OFFSET = tl.constexpr(((127 - 8) << 3) - 1)


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
    parts = triton.cdiv(vocab, BLOCK)
    padded, device = triton.next_power_of_2(parts), logits.device
    maxima = part_maxima(logits)
    histograms = torch.empty(rows, parts, _BINS, dtype=torch.int32, device=device)
    masses = torch.empty(rows, parts, dtype=torch.int64, device=device)
    found = torch.empty(rows, parts + 2, dtype=torch.int32, device=device)
    values = torch.empty(rows, capacity, dtype=torch.float32, device=device)
    ids = torch.empty(rows, capacity, dtype=torch.int32, device=device)
    drawn = torch.empty(rows, dtype=torch.int64, device=device)
    exact = {"enable_fp_fusion": False}
    _profile_kernel[(rows, parts)](
        logits, maxima, temperatures, top_p, restricted, histograms, masses, vocab, parts, BLOCK, padded, _BINS, num_warps=8, **exact
    )
    _choose_kernel[(rows,)](histograms, masses, top_k, top_p, floors, restricted, found, parts, padded, _BINS, num_warps=4)
    _gather_kernel[(rows, parts)](
        logits, maxima, temperatures, restricted, found, values, ids, vocab, parts, capacity, BLOCK, padded, _BINS, num_warps=8
    )
    _finish_kernel[(rows,)](
        logits, maxima, temperatures, keys, top_k, top_p, floors, restricted, masses, found, values, ids, drawn, vocab, parts, capacity,
        _TILE, padded, BELOW_ONE, num_warps=8, **exact,
    )  # fmt: skip
    return draw_rows(logits, maxima, temperatures, keys, drawn, restricted)


@triton.jit
def _weights(values):
    """`sampling.nucleus.token_weights` of values whose maximum is 0: the same operations, so launched without fused multiply-adds."""
    exponents = tl.maximum(values, -64.0) * 1.4426950216293335
    whole = tl.floor(exponents)
    fractions = exponents - whole
    powers = fractions * 0.0018671307479962707 + 0.009017028845846653
    powers = powers * fractions + 0.05579991266131401
    powers = powers * fractions + 0.24016444385051727
    powers = powers * fractions + 0.6931512951850891
    powers = powers * fractions + 1.0
    bits = powers.to(tl.int32, bitcast=True) + (whole.to(tl.int32) << 23)
    return (bits.to(tl.float32, bitcast=True) * 4398046511104.0).to(tl.int64)  # 2 ** 42


@triton.jit
def _scaled(logits, ids, in_range, highest, temperature):
    values = tl.load(logits + ids, mask=in_range, other=float("-inf"))
    return tl.div_rn(values - highest, temperature)


@triton.jit
def _highest(maxima, row, parts, PARTS: tl.constexpr):
    of_part = tl.arange(0, PARTS)
    return tl.max(tl.load(maxima + row * parts + of_part, mask=of_part < parts, other=float("-inf")))


@triton.jit
def _bin_of(values, BINS: tl.constexpr):
    bins = ((0.0 - values).to(tl.int32, bitcast=True) >> _BIN_SHIFT) - _BIN_OFFSET
    bins = tl.minimum(tl.maximum(bins, 0), BINS - 2)
    return tl.where(values > float("-inf"), bins, BINS - 1)


@triton.jit
def _profile_kernel(
    logits,
    maxima,
    temperatures,
    top_p,
    restricted,
    histograms,
    masses,
    vocab,
    parts,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    BINS: tl.constexpr,
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(restricted + row) == 0:
        return
    ids = part * BLOCK + tl.arange(0, BLOCK)
    highest = _highest(maxima, row, parts, PARTS)
    values = _scaled(logits + row * vocab, ids, ids < vocab, highest, tl.load(temperatures + row))
    histogram = tl.histogram(_bin_of(values, BINS), BINS)
    tl.store(histograms + (row * parts + part) * BINS + tl.arange(0, BINS), histogram)
    if tl.load(top_p + row) > 0:
        tl.store(masses + row * parts + part, tl.sum(_weights(values)))


@triton.jit
def _choose_kernel(histograms, masses, top_k, top_p, floors, restricted, found, parts, PARTS: tl.constexpr, BINS: tl.constexpr):
    """found[row]: where each part's candidates begin, their number, and the last bin that may hold any."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(restricted + row) == 0:
        return
    of_part, bins = tl.arange(0, PARTS), tl.arange(0, BINS)
    table = tl.load(histograms + (row * parts + of_part[:, None]) * BINS + bins[None, :], mask=(of_part < parts)[:, None], other=0)
    counts = tl.where(bins < BINS - 1, tl.sum(table, axis=0), 0)
    k, p = tl.load(top_k + row), tl.load(top_p + row)
    if k > 0:
        enough = tl.cumsum(counts) >= tl.minimum(k, tl.sum(counts))
    elif p > 0:
        nearest = tl.where(bins > 0, ((bins + _BIN_OFFSET) << _BIN_SHIFT).to(tl.float32, bitcast=True), 0.0)
        most = counts.to(tl.float32) * tl.exp(-nearest)
        beyond = tl.sum(tl.where(bins[None, :] > bins[:, None], most[None, :], 0.0), axis=1)
        total = tl.sum(tl.load(masses + row * parts + of_part, mask=of_part < parts, other=0)).to(tl.float32) / 4398046511104.0
        enough = beyond * 1.01 <= total * (1.0 - p.to(tl.float32) / 2147483648.0)
    else:
        enough = bins >= _bin_of(tl.load(floors + row), BINS)
    last = tl.min(tl.where(enough, bins, BINS - 2))
    of_parts = tl.sum(tl.where(bins[None, :] <= last, table, 0), axis=1)
    tl.store(found + row * (parts + 2) + of_part, tl.cumsum(of_parts) - of_parts, mask=of_part < parts)
    tl.store(found + row * (parts + 2) + parts, tl.sum(of_parts))
    tl.store(found + row * (parts + 2) + parts + 1, last)


@triton.jit
def _gather_kernel(
    logits,
    maxima,
    temperatures,
    restricted,
    found,
    candidates,
    candidate_ids,
    vocab,
    parts,
    capacity,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    BINS: tl.constexpr,
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(restricted + row) == 0:
        return
    found += row * (parts + 2)
    begin = tl.load(found + part)
    if (tl.load(found + parts) > capacity) | (tl.load(found + part + 1) == begin):
        return
    ids = part * BLOCK + tl.arange(0, BLOCK)
    highest = _highest(maxima, row, parts, PARTS)
    values = _scaled(logits + row * vocab, ids, ids < vocab, highest, tl.load(temperatures + row))
    kept = _bin_of(values, BINS) <= tl.load(found + parts + 1)
    at = row * capacity + begin + tl.cumsum(kept.to(tl.int32)) - 1
    tl.store(candidates + at, values, mask=kept)
    tl.store(candidate_ids + at, ids, mask=kept)


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
    highest, temperature = _highest(maxima, row, parts, PARTS), tl.load(temperatures + row)
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
    """The key and the id of the last token that belongs to the shortest run, by key downwards and id upwards, that sums up to `target`."""
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
            worth = tl.where(tied, _weights(values), 0)
        before = seen + tl.cumsum(worth) - worth
        last_id = tl.maximum(last_id, tl.max(tl.where(tied & (before < rest), ids, -1)))
        seen += tl.sum(worth)
    return low, last_id


@triton.jit
def _sum_from(
    values_at, ids_at, number, highest, temperature, key_before, id_before, key,
    RAW: tl.constexpr, WEIGHTED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The number, or the weight, of the tokens at or above `key` that the set before this one has. int64."""
    total = tl.full((TILE,), 0, tl.int64)
    for begin in range(0, number, TILE):
        values, ids = _tile(values_at, ids_at, begin, number, highest, temperature, RAW, TILE)
        keys = _ordered(values)
        counted = (keys >= key) & ((keys > key_before) | ((keys == key_before) & (ids <= id_before)))
        if WEIGHTED:
            total += tl.where(counted, _weights(values), 0)
        else:
            total += counted.to(tl.int64)
    return tl.sum(total)


@triton.jit
def _tile(values_at, ids_at, begin, number, highest, temperature, RAW: tl.constexpr, TILE: tl.constexpr):
    """values and ids of one tile; what is beyond the end is -inf and the highest id."""
    at = begin + tl.arange(0, TILE)
    if RAW:
        values = _scaled(values_at, at, at < number, highest, temperature)
        ids = at
    else:
        values = tl.load(values_at + at, mask=at < number, other=float("-inf"))
        ids = tl.load(ids_at + at, mask=at < number, other=2147483647)
    return values, ids


@triton.jit
def _ordered(values):
    """float32 to int32 of the same order; adding zero makes the two zeros one."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
