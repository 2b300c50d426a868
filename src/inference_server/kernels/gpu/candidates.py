"""The few tokens of a row that top-k, top-p and min-p may leave, gathered without sorting and without a pass for each bit of a threshold.

Tokens are counted by bins of their distance from the row's maximum, which shows beyond which distance no token can be in the set. Nearer
tokens (a few hundred of 262,144 as a rule) are gathered in the order of their ids; `kernels.gpu.restricted_draw` finds the exact set.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.gpu.draw import BLOCK

_BINS = 128  # of an eighth of an octave: distances from 2**-8 to 2**8; the last is for tokens that cannot be drawn
_BIN_SHIFT = tl.constexpr(20)
_BIN_OFFSET = tl.constexpr(((127 - 8) << 3) - 1)


class Candidates(NamedTuple):
    """values: float32 [R, capacity], logits less the row's maximum, divided by the temperature; ids: int32 [R, capacity], ascending.

    found: int32 [R, parts + 2], where each part's candidates begin, the row's number of them, and the last bin that may hold any. For a
    row with more than fit none are gathered. masses: int64 [R, parts], the weight of each part's tokens, for rows with a top-p.
    """

    values: Tensor
    ids: Tensor
    found: Tensor
    masses: Tensor


def gather_candidates(
    logits: Tensor,
    maxima: Tensor,
    temperatures: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    floors: Tensor,
    restricted: Tensor,
    capacity: int,
) -> Candidates:
    """maxima: `draw.part_maxima`. All others as `restricted_draw` takes them; rows that are not restricted are left out."""
    rows, vocab = logits.shape
    parts = triton.cdiv(vocab, BLOCK)
    padded, device = triton.next_power_of_2(parts), logits.device
    histograms = torch.empty(rows, parts, _BINS, dtype=torch.int32, device=device)
    masses = torch.empty(rows, parts, dtype=torch.int64, device=device)
    found = torch.empty(rows, parts + 2, dtype=torch.int32, device=device)
    values = torch.empty(rows, capacity, dtype=torch.float32, device=device)
    ids = torch.empty(rows, capacity, dtype=torch.int32, device=device)
    _profile_kernel[(rows, parts)](
        logits, maxima, temperatures, top_p, restricted, histograms, masses, vocab, parts, BLOCK, padded, _BINS,
        num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    _choose_kernel[(rows,)](histograms, masses, top_k, top_p, floors, restricted, found, parts, padded, _BINS, num_warps=4)
    _gather_kernel[(rows, parts)](
        logits, maxima, temperatures, restricted, found, values, ids, vocab, parts, capacity, BLOCK, padded, _BINS, num_warps=8
    )
    return Candidates(values, ids, found, masses)


@triton.jit
def token_weights(values):
    """`sampling.nucleus.token_weights` of values whose maximum is 0: the same operations, so never launched with fused multiply-adds."""
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
def scaled(logits, ids, in_range, highest, temperature):
    """Logits of a row's ids less its highest, divided by the temperature; -inf out of range."""
    values = tl.load(logits + ids, mask=in_range, other=float("-inf"))
    return tl.div_rn(values - highest, temperature)


@triton.jit
def highest_of(maxima, row, parts, PARTS: tl.constexpr):
    """The highest of the whole row, from the maxima of its parts."""
    of_part = tl.arange(0, PARTS)
    return tl.max(tl.load(maxima + row * parts + of_part, mask=of_part < parts, other=float("-inf")))


@triton.jit
def _part_of_row(logits, maxima, temperatures, row, part, vocab, parts, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """Ids and values [BLOCK]; -inf behind the end of the vocabulary."""
    ids = part * BLOCK + tl.arange(0, BLOCK)
    highest = highest_of(maxima, row, parts, PARTS)
    return ids, scaled(logits + row * vocab, ids, ids < vocab, highest, tl.load(temperatures + row))


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
    _, values = _part_of_row(logits, maxima, temperatures, row, part, vocab, parts, BLOCK, PARTS)
    histogram = tl.histogram(_bin_of(values, BINS), BINS)
    tl.store(histograms + (row * parts + part) * BINS + tl.arange(0, BINS), histogram)
    if tl.load(top_p + row) > 0:
        tl.store(masses + row * parts + part, tl.sum(token_weights(values)))


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
    ids, values = _part_of_row(logits, maxima, temperatures, row, part, vocab, parts, BLOCK, PARTS)
    kept = _bin_of(values, BINS) <= tl.load(found + parts + 1)
    at = row * capacity + begin + tl.cumsum(kept.to(tl.int32)) - 1
    tl.store(candidates + at, values, mask=kept)
    tl.store(candidate_ids + at, ids, mask=kept)
