"""`DeviceTokenSampler`: adjustment and draw of a step, enqueued one after the other on the device."""

import torch
from torch import Tensor

from inference_server.sampling.device_adjustment import DeviceAdjustment
from inference_server.sampling.device_sampler import DeviceSampler
from inference_server.sampling.token_rows import SamplingRows


class DeviceTokenSampler:
    """Who captures the draw in a graph uses the two parts: `prepare`, `apply`, the graph with `run`, `count`."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self.sampler = DeviceSampler(max_rows, vocab_size, device)
        self.adjustment = DeviceAdjustment(max_rows, vocab_size, device)

    def __call__(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        """Ids [R] int64. logits: [R, V] float32, contiguous; overwritten where rows ask for changes."""
        variant = self.sampler.prepare([request.sampling for request in rows.requests], rows.positions, rows.slots)
        self.adjustment.apply(logits, rows)
        token_ids = self.sampler.run(logits, variant)
        self.adjustment.count(token_ids)
        return token_ids
