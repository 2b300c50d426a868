"""`BlockMass`: how much decoding rows have attended to each block of the full-attention layers; now and then copied to the host.

Attention adds to it (`reference.bind_attention`), evictions are ranked by it (`kv_cache.eviction.H2O`). Knows no request but those of
the plan at hand.
"""

import torch
from torch import Tensor

from inference_server.core.kv_layout import KVLayout
from inference_server.core.plan import StepPlan

COPY_EVERY = 16  # steps
HALF_LIFE = 64  # copies, about a thousand steps

_FULL = 0


class BlockMass:
    """values: fp32 [num_blocks of the first group], mass since the block's first token was written, older mass counting less."""

    def __init__(self, layout: KVLayout, device: torch.device) -> None:
        self.values = torch.zeros(layout.num_blocks(_FULL), dtype=torch.float32, device=device)
        self._block_size = layout.block_size
        self._decay = 0.5 ** (1 / HALF_LIFE)
        self._num_steps = 0

    def clear_reused(self, plan: StepPlan) -> None:
        """A block whose first token is written, or that is copied to, starts from nothing."""
        size = self._block_size
        reused = [copy.dst for copy in plan.block_copies if copy.group == _FULL]
        for request, start, count in zip(plan.requests, plan.starts, plan.num_new_tokens, strict=True):
            reused += request.block_tables[_FULL].block_ids[-(-start // size) : -(-(start + count) // size)]
        if reused:
            self.values[torch.tensor(reused, device=self.values.device)] = 0.0

    def after_step(self) -> Tensor | None:
        """The mass on the host, every `COPY_EVERY` steps; on a GPU it is there once the stream has got so far."""
        self._num_steps += 1
        if self._num_steps % COPY_EVERY:
            return None
        copied = self.values.to("cpu", non_blocking=True, copy=True)
        self.values.mul_(self._decay)
        return copied
