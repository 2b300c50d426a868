"""`TokenSampler`: what a backend calls once a step: from the model's logits to one token for each sampling row.

Masks, biases and penalties first, then the draw, then the log-probabilities of what was drawn. On CUDA all of it is enqueued and nothing
waits; elsewhere the steps do not overlap, and the host, which knows every token, does what is cheapest there.
"""

from typing import TYPE_CHECKING

from torch import Tensor

from inference_server.sampling.adjustment import adjust_logits, apply_masks
from inference_server.sampling.logprobs import rows_to_score, score
from inference_server.sampling.sampler import Sampler
from inference_server.sampling.token_rows import Sampled, SamplingRows

if TYPE_CHECKING:
    from inference_server.sampling.device_sampler import DeviceSampler
    from inference_server.sampling.device_token_sampler import DeviceTokenSampler


class TokenSampler:
    """max_rows: both the rows of a step and the slots."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._sampler = Sampler()
        self._on_device: DeviceTokenSampler | None = None

    @property
    def capturable(self) -> "DeviceSampler | None":
        return self._on_device.sampler if self._on_device else None

    def __call__(self, logits: Tensor, rows: SamplingRows) -> Sampled:
        scored = rows_to_score(rows.requests)
        raw = logits[scored] if scored else logits
        token_ids = self._draw(logits, rows)
        if not scored:
            return Sampled(token_ids)
        return Sampled(token_ids, score(raw, token_ids[scored], [rows.requests[row].sampling.logprobs or 0 for row in scored]))

    def _draw(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        if logits.is_cuda:
            return self._device_sampler(logits)(logits, rows)
        if rows.masks is not None:
            apply_masks(logits, rows.masks)
        adjusted = adjust_logits(logits, rows.requests, rows.positions)
        return self._sampler(adjusted, [request.sampling for request in rows.requests], rows.positions)

    def _device_sampler(self, logits: Tensor) -> "DeviceTokenSampler":
        """Made at the first step, which is the warm-up, since it imports Triton and compiles kernels."""
        if self._on_device is None:
            from inference_server.sampling.device_token_sampler import DeviceTokenSampler

            self._on_device = DeviceTokenSampler(self._max_rows, logits.shape[1], logits.device)
        return self._on_device
