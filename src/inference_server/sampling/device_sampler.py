"""`DeviceSampler`: the draw of a whole batch on an accelerator, made to be captured in graphs.

`prepare` puts the rows' parameters into static buffers, `run` reads only these and the logits: no wait, no copy, no shape that depends on
data. It draws the tokens that `Sampler` draws.
"""

from collections.abc import Sequence
from enum import IntEnum
from math import log

import numpy as np
import torch
from torch import Tensor

from inference_server.core.sampling_params import SamplingParams
from inference_server.kernels.gpu.draw import draw, greedy
from inference_server.kernels.gpu.restricted_draw import restricted_draw
from inference_server.sampling.noise import keys_at, mix_seeds
from inference_server.sampling.nucleus import TOP_P_BITS, fixed_point_top_p

_FIELDS = 7  # temperature, top-k, top-p, log of min-p, restricted, and the two halves of the key


class SamplingVariant(IntEnum):
    """What a batch needs, by its most demanding row: the highest logit, a draw, or a draw from a part of the vocabulary."""

    GREEDY = 0
    DRAWN = 1
    RESTRICTED = 2


class DeviceSampler:
    """Parameters are remembered by slot. A row whose slot keeps its tenant costs one comparison; where all rows do, none costs anything."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        """max_rows: both the rows of a batch and the slots."""
        self._vocab_size = vocab_size
        self._tenants: list[SamplingParams | None] = [None] * max_rows
        self._known = np.zeros((_FIELDS - 2, max_rows), dtype=np.int32)
        self._seeds = np.zeros(max_rows, dtype=np.uint64)
        self._variants = np.zeros(max_rows, dtype=np.int8)
        self._slots: Sequence[int] = ()  # those of the call before, to which _index and _variant belong
        self._index = np.zeros(0, dtype=np.int64)
        self._variant = SamplingVariant.GREEDY
        self._fields = torch.zeros(_FIELDS, max_rows, dtype=torch.int32, device=device)
        temperatures, self._top_k, self._top_p, floors, self._restricted = self._fields[:-2]
        self._temperatures, self._floors = temperatures.view(torch.float32), floors.view(torch.float32)
        self._keys = self._fields[-2:].view(max_rows, 2)

    def prepare(self, params: Sequence[SamplingParams], positions: Sequence[int], slots: Sequence[int]) -> SamplingVariant:
        """Enqueue the copy of what `run` will read, and return its variant.

        positions: the index of each row's token in its sequence. slots: see `SamplingRows`.
        """
        if slots is not self._slots:
            for slot, row_params in zip(slots, params, strict=True):
                if self._tenants[slot] is not row_params:
                    self._remember(slot, row_params)
            self._slots, self._index = slots, np.array(slots)
            self._variant = SamplingVariant(self._variants[self._index].max())
        index, variant = self._index, self._variant
        if variant is not SamplingVariant.GREEDY:
            staged = np.zeros(tuple(self._fields.shape), dtype=np.int32)
            staged[:-2, : len(index)] = self._known[:, index]
            keys = staged[-2:].reshape(-1, 2)
            keys[: len(index)] = keys_at(self._seeds[index], np.array(positions, dtype=np.uint64))
            host = torch.from_numpy(staged)
            # A fresh pinned buffer each time: the copy of the step before may still be waiting for its turn.
            self._fields.copy_(host.pin_memory() if self._fields.is_cuda else host, non_blocking=True)
        return variant

    def run(self, logits: Tensor, variant: SamplingVariant) -> Tensor:
        """Ids [R] int64 of the rows that were prepared. logits: [R, V] float32, contiguous."""
        rows = len(logits)
        if variant is SamplingVariant.GREEDY:
            return greedy(logits)
        temperatures, keys = self._temperatures[:rows], self._keys[:rows]
        if variant is SamplingVariant.DRAWN:
            return draw(logits, temperatures, keys)
        top_k, top_p, floors = self._top_k[:rows], self._top_p[:rows], self._floors[:rows]
        return restricted_draw(logits, temperatures, keys, top_k, top_p, floors, self._restricted[:rows])

    def _remember(self, slot: int, params: SamplingParams) -> None:
        top_k = params.top_k if params.top_k < self._vocab_size else 0
        top_p = max(fixed_point_top_p(params.top_p), 1)
        top_p = top_p if top_p < 1 << TOP_P_BITS else 0
        floor = log(params.min_p) if params.min_p > 0.0 else -np.inf
        restricted = not params.greedy and bool(top_k or top_p or params.min_p > 0.0)
        numbers = np.array([params.temperature, floor], dtype=np.float32).view(np.int32)
        self._known[:, slot] = numbers[0], top_k, top_p, numbers[1], restricted
        self._seeds[slot] = mix_seeds(np.array([params.seed % (1 << 64)], dtype=np.uint64))[0]
        variant = SamplingVariant.RESTRICTED if restricted else SamplingVariant.DRAWN
        self._variants[slot] = SamplingVariant.GREEDY if params.greedy else variant
        self._tenants[slot] = params
