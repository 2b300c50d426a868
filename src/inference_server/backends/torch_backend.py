"""`TorchBackend`: any transformers causal LM over the paged KV pool, with our own generation loop.

The baseline that works for many models, and not a fast one: single-token rows share one padded forward, longer rows run one by one, and
all work is done by the end of `sample`.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from inference_server.backends.device import free_bytes, step_errors
from inference_server.backends.hf_model import HFModel
from inference_server.backends.kv_tensors import KVTensors
from inference_server.backends.paged_hf_cache import PagedHFCache, index_group
from inference_server.core.errors import EngineDeadError, ModelLoadError
from inference_server.core.kv_layout import KVLayout
from inference_server.core.model_spec import ModelSpec
from inference_server.core.options import ModelOptions
from inference_server.core.plan import StepPlan, StepResult, TokenMasks
from inference_server.sampling.logprobs import Scores, values_by_row
from inference_server.sampling.token_rows import SamplingRows, TokenSampling


@dataclass(slots=True)
class TorchStep:
    """A launched step. rows: indices in the plan of the S rows that sample, in the order of `sampling` and of `logits` [S, V]."""

    step_id: int
    num_rows: int
    rows: list[int]
    sampling: SamplingRows
    logits: Tensor | None
    token_ids: Tensor | None = None
    scores: Scores | None = None


class TorchBackend:
    """An `InferenceBackend` over a model folder in the Hugging Face format. Steps do not overlap: it runs one at a time."""

    def __init__(self, options: ModelOptions, folder: Path, sampler: TokenSampling) -> None:
        self._options = options
        self._folder = folder
        self._sampler = sampler
        self._model: HFModel | None = None
        self._kv: KVTensors | None = None

    def load(self) -> ModelSpec:
        self._model = model = HFModel(self._options, self._folder)
        return ModelSpec(
            architecture=model.architecture,
            vocab_size=model.vocab_size,
            max_model_len=model.max_model_len,
            groups=model.groups,
            device=str(model.device),
            dtype=str(model.dtype).removeprefix("torch."),
            num_parameters=model.num_parameters,
            free_bytes=free_bytes(model.device),
            supports_mixed=False,
        )

    def allocate(self, layout: KVLayout) -> None:
        """Raises ModelLoadError when the arena does not fit."""
        model = self._loaded()
        try:
            self._kv = KVTensors(layout, model.dtype, model.device)
        except (RuntimeError, MemoryError) as error:
            raise ModelLoadError(f"a KV arena of {layout.arena_bytes / 2**30:.1f} GiB does not fit on {model.device}") from error

    def launch(self, plan: StepPlan) -> TorchStep:
        """Run the step. A plan with longer rows takes several forwards."""
        with step_errors(), torch.inference_mode():
            return self._launch(plan)

    def sample(self, step: TorchStep, masks: TokenMasks | None = None) -> None:
        if step.logits is not None:
            with step_errors(), torch.inference_mode():
                step.token_ids, step.scores = self._sampler(step.logits, step.sampling.masked(step.rows, masks))
            step.logits = None

    def collect(self, step: TorchStep) -> StepResult:
        token_ids = [-1] * step.num_rows
        if step.token_ids is not None:
            with step_errors():
                for row, token_id in zip(step.rows, step.token_ids.tolist(), strict=True):
                    token_ids[row] = token_id
        return StepResult(step.step_id, token_ids, values_by_row(step.scores, step.sampling.requests, step.rows))

    def close(self) -> None:
        self._model = self._kv = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _launch(self, plan: StepPlan) -> TorchStep:
        self._allocated().copy_blocks(plan.block_copies)
        singles = [row for row, num_new in enumerate(plan.num_new_tokens) if num_new == 1]
        batches = [singles] if singles else []
        batches += [[row] for row, num_new in enumerate(plan.num_new_tokens) if num_new > 1]
        sampled: list[int] = []
        logits: list[Tensor] = []
        for batch in batches:
            batch_logits = self._forward(plan, batch)
            wanted = [i for i, row in enumerate(batch) if plan.samples[row]]
            sampled += [batch[i] for i in wanted]
            logits += [batch_logits if len(wanted) == len(batch) else batch_logits[wanted]] if wanted else []
        all_logits = torch.cat(logits).float() if logits else None
        return TorchStep(plan.step_id, len(plan), sampled, SamplingRows.of(plan, sampled), all_logits)

    def _forward(self, plan: StepPlan, rows: Sequence[int]) -> Tensor:
        """Logits [R, V] of rows that compute the same number of tokens."""
        model, kv = self._loaded(), self._allocated()
        requests = [plan.requests[row] for row in rows]
        starts, num_new = [plan.starts[row] for row in rows], plan.num_new_tokens[rows[0]]
        groups = [
            index_group([r.block_tables[g] for r in requests], starts, num_new, kv.layout.block_size, group.window, kv.dtype, model.device)
            for g, group in enumerate(kv.layout.groups)
        ]
        token_ids = [request.token_ids[start : start + num_new] for request, start in zip(requests, starts, strict=True)]
        positions = [range(start, start + num_new) for start in starts]
        return model.forward(
            torch.tensor(token_ids, device=model.device),
            torch.tensor([list(row) for row in positions], device=model.device),
            {group.window: index.mask for group, index in zip(kv.layout.groups, groups, strict=True)},
            PagedHFCache(kv, groups, max(starts)),
        )

    def _loaded(self) -> HFModel:
        if self._model is None:
            raise EngineDeadError("the backend has no model: it was not loaded, or it was closed")
        return self._model

    def _allocated(self) -> KVTensors:
        if self._kv is None:
            raise EngineDeadError("the backend has no KV arena: it was not allocated, or it was closed")
        return self._kv
