"""One token a row: greedy, or by Gumbel-max with the noise of (seed, position, token id), made on the way without a pass of its own.

The uniform numbers are those of `sampling.noise`, bit for bit; logarithms may differ in the last bit between devices. Three launches read
the logits twice. Which tokens a row may draw is the caller's: forbidden ones have a logit of -inf.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference_server.kernels.gpu.activations import softcap
from inference_server.kernels.gpu.launch import overlaps_launches

BLOCK = 4096
BELOW_ONE = 1.0 - 2.0**-24


def greedy(logits: Tensor, cap: float | None = None) -> Tensor:
    """Ids [R] int64 of the highest logits [R, V] of any float type, contiguous, capped by `softcap` if cap is given: one pass."""
    drawn = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    return _select(logits, logits, logits, logits, None, drawn, False, cap)


def draw(logits: Tensor, temperatures: Tensor, keys: Tensor) -> Tensor:
    """Ids [R] int64 of logits [R, V] float32, contiguous. Equal values: the lower id.

    temperatures: float32 [R], 0 for greedy. keys: int32 [R, 2], `sampling.noise.row_keys`; those of greedy rows are not read.
    """
    drawn = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    return draw_rows(logits, part_maxima(logits), temperatures, keys, drawn)


def part_maxima(logits: Tensor) -> Tensor:
    """The maximum of each part of BLOCK logits: [R, V] float32, contiguous, to [R, parts]."""
    rows, vocab = logits.shape
    maxima = torch.empty(rows, triton.cdiv(vocab, BLOCK), dtype=torch.float32, device=logits.device)
    overlap = overlaps_launches(logits.device)
    _maximum_kernel[tuple(maxima.shape)](logits, maxima, vocab, BLOCK, overlap, num_warps=8, launch_pdl=overlap)
    return maxima


def draw_rows(
    logits: Tensor, maxima: Tensor, temperatures: Tensor, keys: Tensor, drawn: Tensor, restricted: Tensor | None = None
) -> Tensor:
    """`draw` into `drawn` [R] int64, which it returns, except for rows where `restricted` [R] int32 is not 0."""
    return _select(logits, maxima, temperatures, keys, restricted, drawn, True)


def _select(
    logits: Tensor,
    maxima: Tensor,
    temperatures: Tensor,
    keys: Tensor,
    restricted: Tensor | None,
    drawn: Tensor,
    noisy: bool,
    cap: float | None = None,
) -> Tensor:
    rows, vocab = logits.shape
    parts = triton.cdiv(vocab, BLOCK)
    values = torch.empty(rows, parts, dtype=torch.float32, device=logits.device)
    ids = torch.empty(rows, parts, dtype=torch.int32, device=logits.device)
    padded, overlap, some = triton.next_power_of_2(parts), overlaps_launches(logits.device), restricted is not None
    skipped = drawn if restricted is None else restricted
    _draw_kernel[(rows, parts)](
        logits, maxima, temperatures, keys, skipped, values, ids, vocab, parts, BLOCK, padded, BELOW_ONE, noisy, cap, some, overlap,
        num_warps=8, launch_pdl=overlap,
    )  # fmt: skip
    return pick(values, ids, vocab, drawn, restricted)


def pick(values: Tensor, ids: Tensor, vocab: int, drawn: Tensor, restricted: Tensor | None = None) -> Tensor:
    """Into `drawn` [R] int64, which it returns, the id of each row's highest value, the lowest of equals.

    values, ids: [R, parts], the highest of each part of the vocabulary and the int32 id that has it. restricted: as in `draw_rows`.
    """
    rows, parts = values.shape
    padded, overlap, some = triton.next_power_of_2(parts), overlaps_launches(values.device), restricted is not None
    skipped = drawn if restricted is None else restricted
    num_warps = max(1, min(8, padded // 256))
    _pick_kernel[(rows,)](values, ids, skipped, drawn, vocab, parts, padded, some, overlap, num_warps=num_warps, launch_pdl=overlap)
    return drawn


@triton.jit
def uniform(token_ids, offset, multiplier, BELOW_ONE: tl.constexpr):
    """`sampling.noise.uniform`; all uint32."""
    hashed = (_mix(token_ids + 0x3C6EF372) ^ offset) * multiplier
    bits = (_mix(hashed) & 0x7FFFFFFF).to(tl.int32)
    return tl.minimum((bits.to(tl.float32) + 0.5) * 4.656612873077393e-10, BELOW_ONE)  # 2 ** -31


@triton.jit
def _mix(bits):
    bits = (bits ^ (bits >> 16)) * 0x85EBCA6B
    bits = (bits ^ (bits >> 13)) * 0xC2B2AE35
    return bits ^ (bits >> 16)


@triton.jit
def gumbel(u):
    """-log(-log(1 - u)), where log(1 - u) is exact to the last bits also for small u (Kahan's log1p)."""
    rest = 1.0 - u
    log1p = tl.where(rest == 1.0, -u, tl.log(rest) * (u / tl.where(rest == 1.0, 1.0, 1.0 - rest)))
    return -tl.log(-log1p)


@triton.jit
def best_of(values, ids, none):
    """The highest along the first axis, and the lowest id that has it; `none` where no value is a number."""
    best = tl.max(values, 0)
    return best, tl.min(tl.where(values == best, ids, none), 0)


@triton.jit
def _maximum_kernel(logits, maxima, vocab, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = part * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(logits + row * vocab + ids, mask=ids < vocab, other=float("-inf"))
    tl.store(maxima + row * tl.num_programs(1) + part, tl.max(values))


@triton.jit
def _draw_kernel(
    logits,
    maxima,
    temperatures,
    keys,
    restricted,
    best_values,
    best_ids,
    vocab,
    parts,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    BELOW_ONE: tl.constexpr,
    NOISY: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SOME: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if SOME:  # noqa: SIM102 - known when compiling, and only then is there anything to load
        if tl.load(restricted + row) != 0:
            return
    ids = part * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(logits + row * vocab + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
    if SOFTCAP is not None:
        values = softcap(values, SOFTCAP)
    if NOISY:
        temperature = tl.load(temperatures + row)
        if temperature > 0:
            of_part = tl.arange(0, PARTS)
            highest = tl.max(tl.load(maxima + row * parts + of_part, mask=of_part < parts, other=float("-inf")))
            offset = tl.load(keys + 2 * row).to(tl.uint32, bitcast=True)
            multiplier = tl.load(keys + 2 * row + 1).to(tl.uint32, bitcast=True)
            noise = gumbel(uniform(ids.to(tl.uint32), offset, multiplier, BELOW_ONE))
            values = tl.div_rn(values - highest, temperature) + noise
    best, best_id = best_of(values, ids, vocab)
    tl.store(best_values + row * parts + part, best)
    tl.store(best_ids + row * parts + part, best_id)


@triton.jit
def _pick_kernel(values, ids, restricted, drawn, vocab, parts, PARTS: tl.constexpr, SOME: tl.constexpr, OVERLAP: tl.constexpr):
    """The id is one of the vocabulary even where no logit is a number."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row, of_part = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS)
    if SOME:  # noqa: SIM102 - known when compiling, and only then is there anything to load
        if tl.load(restricted + row) != 0:
            return
    candidates = tl.load(values + row * parts + of_part, mask=of_part < parts, other=float("-inf"))
    at = tl.load(ids + row * parts + of_part, mask=of_part < parts, other=vocab)
    _, best_id = best_of(candidates, at, vocab)
    tl.store(drawn + row, tl.minimum(best_id, vocab - 1).to(tl.int64))
