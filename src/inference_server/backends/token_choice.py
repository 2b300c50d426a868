"""`TokenChoice`: from the model's output for each sampling row to one token a row, which also becomes the newest id of the row's slot.

Steps that draw from the logits as they are take a captured launch, if there is one for the number of rows and for what the most demanding
row needs. A step with a row that asks for more, such as penalties or log-probabilities, is enqueued operation by operation. Nothing waits
for the device either way.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from inference_server.backends.cuda_graph_pool import CudaGraphPool, fit
from inference_server.backends.input_batch import InputBatch
from inference_server.core.sampling_params import SamplingParams
from inference_server.models.registry import Model
from inference_server.sampling.token_rows import Sampled, SamplingRows, TokenSampling

if TYPE_CHECKING:
    from inference_server.sampling.device_sampler import DeviceSampler, SamplingVariant


class TokenChoice:
    """hidden: [max_rows, hidden_size], the same memory in every call; its first rows are those of the sampling rows."""

    def __init__(self, model: Model, batch: InputBatch, sampler: TokenSampling) -> None:
        self._model = model
        self._batch = batch
        self._sampler = sampler
        self._ids = torch.zeros(batch.max_rows, dtype=torch.int64, device=batch.newest_ids.device)
        self._unchanged: list[SamplingParams | None] = [None] * batch.max_rows  # by slot: parameters that change no logits
        self._params: list[SamplingParams] = []  # of the rows that were drawn as they are, and their slots
        self._slots: Sequence[int] = ()
        self._capturable: DeviceSampler | None = None
        self._sizes: Sequence[int] = ()

    def __call__(self, hidden: Tensor, rows: SamplingRows, graphs: CudaGraphPool | None) -> Sampled:
        """Enqueue the choice. The ids are good until the next call."""
        num_rows, scores = len(rows.requests), None
        if num_rows:
            size = fit(self._sizes, num_rows)
            if graphs is not None and self._capturable is not None and size is not None and self._draws_as_they_are(rows):
                graphs.replay((self._capturable.prepare(self._params, rows.positions, rows.slots), size))
            else:
                ids, scores = self._sampler(self._model.compute_logits(hidden[:num_rows]), rows)
                self._batch.keep(ids, self._ids)
        return Sampled(self._ids[:num_rows], scores)

    def launches(self, hidden: Tensor, sizes: Sequence[int]) -> dict[Hashable, Callable[[], None]]:
        """What to capture for batches of these sizes, largest first; nothing where the sampler has no draw for it."""
        sampler = self._capturable = self._sampler.capturable
        if sampler is None:
            return {}
        from inference_server.sampling.device_sampler import SamplingVariant  # needs Triton

        self._sizes = sizes

        def choose(variant: "SamplingVariant", size: int) -> Tensor:
            if variant is SamplingVariant.GREEDY:
                return self._model.likeliest(hidden[:size])
            return sampler.run(self._model.compute_logits(hidden[:size]), variant)

        def launch(variant: "SamplingVariant", size: int) -> Callable[[], None]:
            return lambda: self._batch.keep(choose(variant, size), self._ids)

        return {(variant, size): launch(variant, size) for variant in SamplingVariant for size in reversed(sizes)}

    def _draws_as_they_are(self, rows: SamplingRows) -> bool:
        if rows.masks is not None:
            return False
        if rows.slots is self._slots:
            return True
        unchanged = self._unchanged
        for request, position, slot in zip(rows.requests, rows.positions, rows.slots, strict=True):
            params = request.sampling
            if unchanged[slot] is params:
                continue
            if params.logprobs is not None or params.changes_logits(position - request.num_prompt_tokens):
                return False
            unchanged[slot] = params
        self._params, self._slots = [request.sampling for request in rows.requests], rows.slots
        return True
