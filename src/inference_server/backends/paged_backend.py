"""`PagedBackend`: the hand-written models over the paged KV arena, on CUDA, MPS or the CPU.

It owns the weights, the arena and the newest token of every slot. A step is: block copies, one forward over the flat batch,
logits of the rows that sample, their tokens. What a row may attend to is the plan's business, what a token costs the model's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from inference_server.backends.device import free_bytes, select_device, select_dtype, step_errors, use_available_cores
from inference_server.backends.input_batch import InputBatch
from inference_server.backends.kv_tensors import KVTensors
from inference_server.checkpoints.errors import CheckpointError
from inference_server.core.errors import ModelLoadError
from inference_server.core.kv_layout import KVLayout
from inference_server.core.model_spec import ModelSpec
from inference_server.core.options import ModelOptions
from inference_server.core.plan import StepPlan, StepResult, TokenMasks
from inference_server.core.request import BlockTable, ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.kernels.ops import Ops
from inference_server.kernels.select_ops import select_ops
from inference_server.models.registry import Model, find_family, read_config
from inference_server.models.weights import RandomWeights, TensorSource, Weights
from inference_server.sampling.token_rows import SamplingRows, TokenSampling


@dataclass(slots=True)
class PagedStep:
    """A launched step. rows: the indices in the plan of the rows that sample; sampling: the same rows for the sampler."""

    step_id: int
    num_rows: int
    rows: list[int]
    sampling: SamplingRows
    logits: torch.Tensor | None = None
    token_ids: torch.Tensor | None = None
    copied: torch.cuda.Event | None = None


class PagedBackend:
    """An `InferenceBackend` for the architectures of `models.registry`."""

    def __init__(
        self, options: ModelOptions, folder: Path, open_checkpoint: Callable[[Path], TensorSource], sampler: TokenSampling
    ) -> None:
        self._options = options
        self._folder = folder
        self._open_checkpoint = open_checkpoint
        self._sampler = sampler
        self._device = torch.device("cpu")
        self._ops: Ops | None = None
        self._max_model_len = 0
        self._model: Model | None = None
        self._kv: KVTensors | None = None
        self._batch: InputBatch | None = None
        self._last_token_ids = torch.empty(0, dtype=torch.int64)

    def load(self) -> ModelSpec:
        config_dict = read_config(self._folder)
        found = find_family(config_dict)
        if found is None:
            raise ModelLoadError(f"architecture {config_dict.get('architectures')} has no hand-written forward; use BACKEND=hf")
        architecture, family = found
        self._device = select_device(self._options.device)
        dtype = select_dtype(self._options.dtype)
        if self._device.type == "cpu":
            use_available_cores()
        ops = self._ops = select_ops(self._device, dtype)
        config = family.config_from_dict(config_dict)
        try:
            weights = self._open_weights(dtype, ops)
            self._model = family.model(config, weights)
        except (CheckpointError, torch.OutOfMemoryError) as error:
            raise ModelLoadError(str(error).splitlines()[0]) from error
        self._max_model_len = config.max_position_embeddings
        return ModelSpec(
            architecture=architecture,
            vocab_size=config.vocab_size,
            max_model_len=config.max_position_embeddings,
            groups=config.layer_groups(dtype.itemsize),
            device=str(self._device),
            dtype=str(dtype).removeprefix("torch."),
            num_parameters=weights.num_parameters,
            free_bytes=free_bytes(self._device),
            supports_overlap=self._device.type == "cuda",
        )

    def allocate(self, layout: KVLayout) -> None:
        """Raises ModelLoadError when the arena does not fit."""
        assert self._ops is not None, "load comes first"
        dtype = select_dtype(self._options.dtype)
        max_slots = self._options.max_batch_size
        try:
            self._kv = KVTensors(layout, dtype, self._device)
        except (RuntimeError, MemoryError) as error:
            raise ModelLoadError(f"a KV arena of {layout.arena_bytes / 2**30:.1f} GiB does not fit on {self._device}") from error
        self._batch = InputBatch(layout, max_slots, self._max_model_len, self._device, self._ops)
        self._last_token_ids = torch.zeros(max_slots, dtype=torch.int64, device=self._device)
        self._warm_up(len(layout.groups))

    def launch(self, plan: StepPlan) -> PagedStep:
        assert self._model is not None and self._kv is not None and self._batch is not None, "load and allocate come first"
        step = _sampling_rows(plan)
        with step_errors(), torch.inference_mode():
            self._kv.copy_blocks(plan.block_copies)
            inputs = self._batch.build(plan, self._last_token_ids)
            hidden = self._model.forward(inputs.input_ids, inputs.positions, inputs.metadata, self._kv)
            if step.rows:
                step.logits = self._model.compute_logits(hidden[inputs.sampling_tokens])
        return step

    def sample(self, step: PagedStep, masks: TokenMasks | None = None) -> None:
        if step.logits is None:
            return
        with step_errors(), torch.inference_mode():
            token_ids = self._sampler(step.logits, step.sampling.masked(step.rows, masks)).token_ids
            self._last_token_ids[torch.tensor(step.sampling.slots, device=self._device)] = token_ids
            step.logits = None
            step.token_ids = token_ids.to("cpu", non_blocking=True)
            if self._device.type == "cuda":
                step.copied = torch.cuda.Event()
                step.copied.record()

    def collect(self, step: PagedStep) -> StepResult:
        token_ids = [-1] * step.num_rows
        if step.token_ids is not None:
            with step_errors():
                if step.copied is not None:
                    step.copied.synchronize()
                for row, token_id in zip(step.rows, step.token_ids.tolist(), strict=True):
                    token_ids[row] = token_id
        return StepResult(step.step_id, token_ids)

    def close(self) -> None:
        self._model = self._kv = self._batch = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _open_weights(self, dtype: torch.dtype, ops: Ops) -> Weights:
        if self._options.load_format == "dummy":
            return RandomWeights(self._device, dtype, ops)
        return Weights(self._open_checkpoint(self._folder), self._device, dtype, ops)

    def _warm_up(self, num_groups: int) -> None:
        """One token, then two, their KV in the null block, so that no request waits for a library's first call or a kernel's compiler."""
        for count in (1, 2):
            tables = [BlockTable([0] * count) for _ in range(num_groups)]
            plan = StepPlan(step_id=-1)
            plan.add(ScheduledRequest("", [0] * count, SamplingParams(), 0.0, slot=0, block_tables=tables), 0, count, samples=True)
            step = self.launch(plan)
            self.sample(step)
            self.collect(step)


def _sampling_rows(plan: StepPlan) -> PagedStep:
    rows = [row for row, samples in enumerate(plan.samples) if samples]
    requests = [plan.requests[row] for row in rows]
    positions = [plan.starts[row] + plan.num_new_tokens[row] for row in rows]
    return PagedStep(plan.step_id, len(plan), rows, SamplingRows(requests, positions, [request.slot for request in requests]))
