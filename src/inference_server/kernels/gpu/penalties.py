"""Masks and penalties of a few rows of logits, in place and in one pass over each row.

What a row has seen is one int32 for each token of the vocabulary: twice its occurrences in the output, and one more if the prompt has it.
The arithmetic is that of `sampling.adjustment`, operation by operation.
"""

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


def apply_penalties(logits: Tensor, rows: Tensor, penalties: Tensor, seen: Tensor, masks: Tensor) -> None:
    """Change rows of logits [R, V] float32, contiguous.

    rows: int32 [N, 3], each a row of logits, its row of `seen` or -1, and its row of `masks` or -1. penalties: float32 [N, 3]: presence,
    frequency, repetition. seen: int32 [S, V]. masks: int32 [S, ceil(V / 32)], bit i of word w allows token 32 * w + i.
    """
    vocab = logits.shape[1]
    grid = (len(rows), triton.cdiv(vocab, _BLOCK))
    _penalties_kernel[grid](logits, rows, penalties, seen, masks, vocab, masks.shape[1], _BLOCK, num_warps=8, enable_fp_fusion=False)


@triton.jit
def _penalties_kernel(logits, rows, penalties, seen, masks, vocab, words, BLOCK: tl.constexpr):
    entry = tl.program_id(0)
    row, slot, mask = tl.load(rows + 3 * entry).to(tl.int64), tl.load(rows + 3 * entry + 1), tl.load(rows + 3 * entry + 2)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_range = ids < vocab
    values = tl.load(logits + row * vocab + ids, mask=in_range)
    if mask >= 0:
        word = tl.load(masks + mask.to(tl.int64) * words + ids // 32, mask=in_range, other=0)
        values = tl.where((word >> (ids % 32)) & 1 != 0, values, float("-inf"))
    if slot >= 0:
        presence, frequency = tl.load(penalties + 3 * entry), tl.load(penalties + 3 * entry + 1)
        repetition = tl.load(penalties + 3 * entry + 2)
        state = tl.load(seen + slot.to(tl.int64) * vocab + ids, mask=in_range, other=0)
        repeated = tl.where(values > 0, tl.div_rn(values, repetition), values * repetition)
        values = tl.where(state != 0, repeated, values)
        count = state >> 1
        values -= frequency * count.to(tl.float32)
        values -= tl.where(count > 0, presence, 0.0)
    tl.store(logits + row * vocab + ids, values, mask=in_range)
