"""`DeviceAdjustment`: the changes that `adjustment.py` defines, for steps that overlap: tokens sampled but not collected count too.

The tokens that a row has seen are kept on the device by slot. They are counted from the host's tokens when a request comes to a slot or
comes back to one, and from then on from the sampled ids, on the device. Work and memory (4 bytes for each slot and token of the
vocabulary) are only spent once a request asks for them.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference_server.core.request import ScheduledRequest
from inference_server.kernels.gpu.penalties import apply_penalties
from inference_server.sampling.token_rows import SamplingRows

_BITS = 32


@dataclass(slots=True)
class _Tenant:
    """The request for which a slot's rows of `_seen` and `_masks` were made. stay: its preemptions then.

    num_counted: tokens that its row of `_seen` counts, those still on the device included; -1 before there is one.
    constrained: whether its mask includes what a grammar allowed in the step before.
    """

    request: ScheduledRequest
    stay: int
    num_counted: int
    constrained: bool
    biases: tuple[NDArray[np.int64], NDArray[np.float32]]
    early: tuple[NDArray[np.int64], NDArray[np.float32]]  # the same, and what may not be drawn before min_tokens


class DeviceAdjustment:
    """All calls belong to one stream. `apply` comes before the draw and `count` after it."""

    def __init__(self, max_slots: int, vocab_size: int, device: torch.device) -> None:
        self._device = device
        self._vocab_size = vocab_size
        self._tenants: list[_Tenant | None] = [None] * max_slots
        self._seen = torch.empty(0, vocab_size, dtype=torch.int32, device=device)
        self._masks = torch.empty(0, -(-vocab_size // _BITS), dtype=torch.int32, device=device)
        self._counting: tuple[Tensor, Tensor] | None = None

    def apply(self, logits: Tensor, rows: SamplingRows) -> None:
        """Change the logits [R, V] float32, contiguous, in place, where a row asks for it."""
        self._counting = None
        entries: list[tuple[int, int, int]] = []
        penalties: list[tuple[float, float, float]] = []
        edited: list[NDArray[np.int64]] = []
        edits: list[NDArray[np.float32]] = []
        for row, (request, position, slot) in enumerate(zip(rows.requests, rows.positions, rows.slots, strict=True)):
            params, mask = request.sampling, None if rows.masks is None else rows.masks[row]
            num_output = position - request.num_prompt_tokens
            if mask is None and not params.changes_logits(num_output):
                continue
            tenant = self._tenant(request, position, slot)
            ids, values = tenant.early if num_output < params.min_tokens else tenant.biases
            edited.append(ids + row * self._vocab_size)
            edits.append(values)
            if mask is not None or tenant.constrained:
                self._mask(request, slot, mask)
                tenant.constrained = mask is not None
            masked = tenant.constrained or params.allowed_token_ids is not None
            if params.penalised or masked:
                entries.append((row, slot if params.penalised else -1, slot if masked else -1))
                penalties.append((params.presence_penalty, params.frequency_penalty, params.repetition_penalty))
        if any(map(len, edited)):
            logits.view(-1).index_add_(0, self._copied(np.concatenate(edited)), self._copied(np.concatenate(edits)))
        if entries:
            table = np.array(entries, dtype=np.int32)
            apply_penalties(logits, self._copied(table), self._copied(np.array(penalties, dtype=np.float32)), self._seen, self._masks)
            counted = table[table[:, 1] >= 0, :2].astype(np.int64)
            if len(counted):
                on_device = self._copied(counted)
                self._counting = on_device[:, 0], on_device[:, 1] * self._vocab_size

    def count(self, token_ids: Tensor) -> None:
        """Add the ids [R] that were drawn from the logits of the last `apply`."""
        if self._counting is not None:
            rows, offsets = self._counting
            self._seen.view(-1)[offsets + token_ids[rows]] += 2

    def _tenant(self, request: ScheduledRequest, position: int, slot: int) -> _Tenant:
        tenant = self._tenants[slot]
        if tenant is None or tenant.request is not request or tenant.stay != request.num_preemptions:
            tenant = self._tenants[slot] = _Tenant(
                request, request.num_preemptions, -1, False, _biases(request, False), _biases(request, True)
            )
            self._mask(request, slot, None)
        if request.sampling.penalised:
            if tenant.num_counted != position:
                self._load_seen(request, position, slot)
            tenant.num_counted = position + 1
        return tenant

    def _load_seen(self, request: ScheduledRequest, position: int, slot: int) -> None:
        """Count the first `position` tokens. Of a request that comes to a slot none is on the device alone: the host knows them all."""
        assert position <= len(request.token_ids), "a sampled token was not counted"
        if not len(self._seen):
            self._seen = torch.zeros(len(self._tenants), self._vocab_size, dtype=torch.int32, device=self._device)
        known = self._copied(np.array(request.token_ids[:position], dtype=np.int64))
        prompt, output = known[: request.num_prompt_tokens], known[request.num_prompt_tokens :]
        row = self._seen[slot].zero_()
        row[prompt] = 1
        row.index_add_(0, output, torch.full_like(output, 2, dtype=torch.int32))

    def _mask(self, request: ScheduledRequest, slot: int, mask: bytes | None) -> None:
        """Write into the slot's mask the tokens that both the request and a grammar (`mask`) allow, if either restricts them."""
        allowed = request.sampling.allowed_token_ids
        if allowed is None and mask is None:
            return
        if not len(self._masks):
            self._masks = torch.zeros(len(self._tenants), self._masks.shape[1], dtype=torch.int32, device=self._device)
        words = np.full(self._masks.shape[1], -1, dtype=np.int32) if allowed is None else _packed(allowed, self._masks.shape[1])
        if mask is not None:
            words &= np.frombuffer(mask, dtype="<i4")
        self._masks[slot].copy_(self._copied(words))

    def _copied(self, array: NDArray) -> Tensor:
        host = torch.from_numpy(array)
        return host.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else host


def _biases(request: ScheduledRequest, early: bool) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Token ids, each once, and what is added to their logits. early: before min_tokens, when stop tokens get -inf."""
    params = request.sampling
    biases = dict(params.logit_bias) | (dict.fromkeys(params.stop_token_ids, -np.inf) if early else {})
    return np.array(list(biases), dtype=np.int64), np.array(list(biases.values()), dtype=np.float32)


def _packed(token_ids: frozenset[int], num_words: int) -> NDArray[np.int32]:
    bits = np.zeros(num_words * _BITS, dtype=np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
