"""`DeviceTokenSampler`: adjustment and draw of a step, enqueued one after the other on the device."""

import torch
from torch import Tensor

from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.sampling.device_adjustment import DeviceAdjustment
from inference_server.sampling.device_sampler import DeviceSampler
from inference_server.sampling.token_rows import SamplingRows


class DeviceTokenSampler:
    """max_rows: both the rows of a step and the slots. sampler: the draw alone, for captured launches, which adjust no logits."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self.sampler = DeviceSampler(max_rows, vocab_size, device)
        self._adjustment = DeviceAdjustment(max_rows, vocab_size, device)
        self._warm_up(torch.zeros(1, vocab_size, device=device))

    def __call__(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        """Ids [R] int64. logits: [R, V] float32; overwritten where rows ask for changes."""
        logits = logits.contiguous()
        variant = self.sampler.prepare([request.sampling for request in rows.requests], rows.positions, rows.slots)
        self._adjustment.apply(logits, rows)
        token_ids = self.sampler.run(logits, variant)
        self._adjustment.count(token_ids)
        return token_ids

    def _warm_up(self, logits: Tensor) -> None:
        """Compile every kernel, so that no request waits for it."""
        for params in (SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(top_k=2, top_p=0.5, presence_penalty=1.0)):
            rows = SamplingRows([ScheduledRequest("", [0], params, 0.0, slot=0)], [1], [0])
            one_slot = DeviceAdjustment(1, logits.shape[1], logits.device)  # the state of all slots is allocated when it is needed
            one_slot.apply(logits, rows)
            one_slot.count(self.sampler.run(logits, self.sampler.prepare([params], rows.positions, rows.slots)))
